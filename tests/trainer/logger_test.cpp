// Loggers: files that TensorBoard, spreadsheets and jq can read.
#include "tutti/trainer/loggers/logger.h"
#include "tests/places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/event_records.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"

namespace tutti::trainer {
namespace {

namespace fs = std::filesystem;

TEST(TensorBoard, WritesRecordsWithTagStepAndValue) {
  TempFolder folder;
  {
    const auto logger = make_tensorboard_logger(folder.path() / "tb");
    logger->log({300, 1}, {{"train/loss", 1.5}});
    logger->flush();
  }
  const fs::path path = *fs::directory_iterator(folder.path() / "tb");
  EXPECT_THAT(path.filename().string(), testing::StartsWith("events.out.tfevents."));
  const auto all = records(read_file(path));
  ASSERT_EQ(all.size(), 2u);
  EXPECT_THAT(all[0], testing::EndsWith(std::string("\x1a\x0d") + "brain.Event:2"));
  // wall_time, then step 300 as a varint, then summary{value{tag, simple_value}}.
  const std::string expected = std::string("\x10\xac\x02\x2a\x13\x0a\x11\x0a\x0a", 9) +
                               "train/loss" + std::string("\x15\x00\x00\xc0\x3f", 5);
  EXPECT_EQ(all[1].substr(9), expected);
}

TEST(TensorBoard, ItsOwnReaderFindsEveryValueAlsoOfAKilledRun) {
  TempFolder folder;
  {
    const auto logger = make_tensorboard_logger(folder.path());
    logger->log({1, 0}, {{"train/loss", 1.5}, {"lr", 1e-4}});
    logger->log({2, 0}, {{"train/loss", 1.25}});
    logger->flush();
  }
  {  // the next life, in a file of its own
    const auto logger = make_tensorboard_logger(folder.path());
    logger->log({1'000'000'000'000, 7}, {{"train/loss", -3.0}, {"valid/cer_ctc", 0.5}});
    logger->flush();
  }
  for (const auto& file : fs::directory_iterator(folder.path())) {  // a record cut short by kill -9
    write_file_atomic(file.path(), read_file(file.path()) + std::string("\x18\0\0\0\0\0\0", 7));
    break;
  }
  const auto result = run_command(
      {.argv = {TUTTI_PYTHON, in_source("tests/trainer/read_events.py"), folder.path().string()},
       .timeout = std::chrono::seconds(100)});
  if (result.exit_code == 77) GTEST_SKIP() << result.err;
  ASSERT_TRUE(result.ok()) << result.describe();
  const Json seen = parse_json(result.out, "what TensorBoard says");
  EXPECT_EQ(seen["train/loss"], Json::parse("[[1, 1.5], [2, 1.25], [1000000000000, -3.0]]"));
  EXPECT_EQ(seen["valid/cer_ctc"], Json::parse("[[1000000000000, 0.5]]"));
  EXPECT_NEAR(seen["lr"][0][1].get<double>(), 1e-4, 1e-10);
}

TEST(TensorBoard, LeavesOutWhatAKilledRunLoggedAfterItsLastSave) {
  TempFolder folder;
  {
    const auto killed = make_tensorboard_logger(folder.path());
    for (int step = 1; step <= 5; ++step) killed->log({step, 0}, {{"loss", 9.0}});
  }
  const auto file = std::filesystem::directory_iterator(folder.path())->path();
  std::filesystem::rename(file, folder.path() / "events.out.tfevents.0000000001.host.1.0");
  const auto resumed = make_tensorboard_logger(folder.path());
  resumed->rewind(3, false);
  for (int step = 4; step <= 6; ++step) resumed->log({step, 0}, {{"loss", 1.0}});
  const auto result = run_command(
      {.argv = {TUTTI_PYTHON, in_source("tests/trainer/read_events.py"), folder.path().string()}});
  if (result.exit_code == 77) GTEST_SKIP() << result.err;
  ASSERT_TRUE(result.ok()) << result.describe();
  EXPECT_EQ(parse_json(result.out, "events")["loss"],
            Json::parse("[[1,9.0],[2,9.0],[3,9.0],[4,1.0],[5,1.0],[6,1.0]]"));
}

// Not only TensorBoard reads these files.
TEST(TensorBoard, TakesOutOfOlderFilesWhatIsLoggedAgain) {
  TempFolder folder;
  const fs::path old = folder.path() / "events.out.tfevents.0000000001.host.1.0";
  {
    const auto killed = make_tensorboard_logger(folder.path() / "x");
    for (int step = 1; step <= 300; ++step) killed->log({step, 0}, {{"loss", 9.0}, {"acc", 1}});
    killed->log({200, 0}, {{"valid/loss", 9.0}});
    fs::rename(*fs::directory_iterator(folder.path() / "x"), old);
  }
  write_file_atomic(old, read_file(old) + std::string("\x18\0\0\0\0\0\0", 7));  // cut by kill -9
  const auto copy = read_file(old);
  make_tensorboard_logger(folder.path())->rewind(200, /*at_the_end=*/false);
  EXPECT_EQ(records(read_file(old)).size(), 202u);  // the file's own, and 200 steps with validation
  write_file_atomic(old, copy);
  make_tensorboard_logger(folder.path())->rewind(200, /*at_the_end=*/true);
  EXPECT_EQ(records(read_file(old)).size(), 201u);
}

TEST(Csv, OneHeaderAlsoWhenMetricsAppearLaterAndAfterResume) {
  TempFolder folder;
  {
    const auto logger = make_csv_logger(folder.path());
    logger->log({1, 0}, {{"a", 0.5}});
    logger->log({2, 0}, {{"a", 0.25}});
  }
  {
    const auto logger = make_csv_logger(folder.path());
    logger->log({3, 1}, {{"a", 1}, {"b", 2}});
    logger->log({4, 1}, {{"b", 3}});
  }
  EXPECT_EQ(read_file(folder.path() / "metrics.csv"),
            "a,b,epoch,step\n0.5,,0,1\n0.25,,0,2\n1,2,1,3\n,3,1,4\n");
}

TEST(Csv, LinesAreWrittenSoManyAtATime) {
  TempFolder folder;
  const auto path = folder.path() / "metrics.csv";
  const auto logger = make_csv_logger(folder.path(), /*every=*/2);
  logger->log({1, 0}, {{"a", 1}});
  EXPECT_FALSE(std::filesystem::exists(path));
  logger->log({2, 0}, {{"a", 2}});
  EXPECT_EQ(read_file(path), "a,epoch,step\n1,0,1\n2,0,2\n");
  logger->log({3, 0}, {{"a", 3}});
  EXPECT_EQ(read_file(path), "a,epoch,step\n1,0,1\n2,0,2\n");
  logger->flush();
  EXPECT_EQ(read_file(path), "a,epoch,step\n1,0,1\n2,0,2\n3,0,3\n");
}

// The layout `mlflow ui` reads; a resumed run goes on in its own.
TEST(Mlflow, ARunInAFileStore) {
  TempFolder folder;
  const MlflowOptions options{.folder = folder.path() / "mlruns",
                              .experiment = "asr",
                              .run = "it's one",
                              .note = folder.path() / "note",
                              .tags = {{"team", "a"}}};
  for (int process = 0; process < 2; ++process)
    make_mlflow_logger(options)->log({10 + process, 1}, {{"valid/loss", 0.5}});
  const std::string run = std::string(trim(read_file(folder.path() / "note")));
  std::vector<std::filesystem::path> experiments;
  for (const auto& entry : std::filesystem::directory_iterator(options.folder))
    experiments.push_back(entry.path());
  ASSERT_EQ(experiments.size(), 1u);
  EXPECT_THAT(read_file(experiments[0] / "meta.yaml"), testing::HasSubstr("name: 'asr'"));
  const auto meta = read_file(experiments[0] / run / "meta.yaml");
  EXPECT_THAT(meta, testing::HasSubstr("run_name: 'it''s one'"));
  EXPECT_THAT(meta, testing::HasSubstr("status: 3"));
  EXPECT_EQ(read_file(experiments[0] / run / "tags/team"), "a");
  const auto lines = split(trim(read_file(experiments[0] / run / "metrics/valid/loss")), '\n');
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[1], testing::EndsWith(" 0.5 11"));
}

TEST(Prefix, ComesBeforeEveryName) {
  TempFolder folder;
  with_prefix("asr", make_jsonl_logger(folder.path() / "m.jsonl"))->log({7, 2}, {{"loss", 0.5}});
  EXPECT_EQ(read_file(folder.path() / "m.jsonl"), "{\"step\":7,\"epoch\":2,\"asr-loss\":0.5}\n");
}

TEST(Jsonl, OneObjectPerLine) {
  TempFolder folder;
  const auto logger = make_jsonl_logger(folder.path() / "m.jsonl");
  logger->log({7, 2}, {{"valid/loss", 0.5}});
  EXPECT_EQ(read_file(folder.path() / "m.jsonl"), "{\"step\":7,\"epoch\":2,\"valid/loss\":0.5}\n");
}

TEST(MetricSums, MeansAreExactForUnequalWeights) {
  // Lightning's sync_dist gives 1.8333 for this: 4 and 3 samples with sums 5.5 and 5.5.
  MetricSums a, b;
  a.add("m", 5.5, 4);
  b.add("m", 5.5, 3);
  a.add(b);
  EXPECT_DOUBLE_EQ(a.means().at("m"), 11.0 / 7.0);
  EXPECT_DOUBLE_EQ(MetricSums::from_json(a.to_json()).means().at("m"), 11.0 / 7.0);
}

}  // namespace
}  // namespace tutti::trainer
