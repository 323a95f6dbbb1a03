// `tutti doctor --gpus` as a user types it, on CPU ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/places.h"
#include "tutti/core/json.h"
#include "tutti/core/subprocess.h"

namespace tutti::trainer {
namespace {

using testing::AllOf;
using testing::HasSubstr;

CommandResult doctor(std::vector<std::string> words) {
  words.insert(words.begin(), {in_bin("tutti"), "doctor"});
  return run_command(
      {.argv = words, .env = {{"CUDA_VISIBLE_DEVICES", ""}}, .timeout = std::chrono::seconds(100)});
}

TEST(Doctor, CpuRanksCheckTheirSumsAndSayHowFastTheyAre) {
  const auto result = doctor({"--gpus", "--cpu_ranks", "3", "--json"});
  ASSERT_TRUE(result.ok()) << result.describe();
  const Json report = parse_json(result.out, "doctor");
  EXPECT_EQ(report["ranks"], 3);
  EXPECT_EQ(report["right"], true);
  ASSERT_EQ(report["speeds"].size(), 4U);  // a copy, three sizes
  for (const Json& row : report["speeds"])
    EXPECT_GT(row["bytes_per_second"].get<double>(), 0) << row;

  const auto text = doctor({"--cpu_ranks", "2"});
  ASSERT_TRUE(text.ok()) << text.describe();
  EXPECT_THAT(text.out, AllOf(HasSubstr("2 ranks on 1 node over "), HasSubstr("the right numbers"),
                              HasSubstr("all_reduce"), HasSubstr("25.0 MiB")));
  EXPECT_THAT(text.err, HasSubstr("all_reduce of 25.0 MiB ..."));  // what it is at
}

TEST(Doctor, WithoutGpusItSaysSo) {
  const auto result = doctor({"--gpus"});
  EXPECT_EQ(result.exit_code, 2) << result.describe();
  EXPECT_THAT(result.err, AllOf(HasSubstr("no GPU is visible"), HasSubstr("--cpu_ranks 2")));
  EXPECT_EQ(doctor({"--cpu_ranks", "0"}).exit_code, 2);
}

}  // namespace
}  // namespace tutti::trainer
