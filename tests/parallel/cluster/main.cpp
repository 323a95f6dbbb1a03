// The test program is its own worker: what runs on the cluster is registered in it.
#include <gtest/gtest.h>

#include "tutti/parallel/worker.h"

int main(int argc, char** argv) {
  if (const auto code = tutti::parallel::worker_main_if_requested(argc, argv)) return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
