// The test program is its own worker: what runs on the cluster is registered in it.
#include <cstdlib>

#include "tests/parallel/cluster/bed.h"
#include "tutti/parallel/worker/worker.h"

int main(int argc, char** argv) {
  if (const auto code = tutti::parallel::worker_main_if_requested(argc, argv)) return *code;
  testing::InitGoogleTest(&argc, argv);
  ::setenv("TUTTI_PYTHON", TUTTI_PYTHON, 0);  // for the beds' scripts
  const int code = RUN_ALL_TESTS();
  const bool clean = tutti::parallel::BedTest::bring_down();
  if (code != 0 || !clean) return 1;
  const auto& tests = *testing::UnitTest::GetInstance();
  return tests.successful_test_count() == 0 && tests.skipped_test_count() > 0 ? 77 : 0;
}
