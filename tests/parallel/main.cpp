// The test program is its own worker: runners under test are registered in it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

#include "tests/parallel/items.h"

int main(int argc, char** argv) {
  if (const auto code = tutti::parallel::worker_main_if_requested(argc, argv)) return *code;
  // A driver for others to kill: main drive FOLDER N_WORKERS.
  if (argc == 4 && std::string_view(argv[1]) == "drive")
    return tutti::parallel::trial::drive(argv[2], std::atoi(argv[3])), 0;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
