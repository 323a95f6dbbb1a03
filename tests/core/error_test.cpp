#include "tutti/core/error.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(Error, EveryTypeHasItsDocumentedExitCode) {
  EXPECT_EQ(ConfigError("x").exit_code(), ExitCode{2});
  EXPECT_EQ(DataError("x").exit_code(), ExitCode{3});
  EXPECT_EQ(IoError("x").exit_code(), ExitCode{4});
  EXPECT_EQ(CommError("x").exit_code(), ExitCode{5});
  EXPECT_EQ(SchedulerError("x").exit_code(), ExitCode{6});
  EXPECT_EQ(TaskError("x").exit_code(), ExitCode{7});
  EXPECT_EQ(InternalError("x").exit_code(), ExitCode{70});
  EXPECT_EQ(Cancelled(Cancelled::By::kSignal, "x").exit_code(), ExitCode{85});
  EXPECT_EQ(Cancelled(Cancelled::By::kUser, "x").exit_code(), ExitCode{130});
}

TEST(Error, MessageCarriesTheFix) {
  EXPECT_STREQ(DataError("a.scp:3: no such file", "check the path").what(),
               "a.scp:3: no such file\n  fix: check the path");
}

}  // namespace
}  // namespace tutti
