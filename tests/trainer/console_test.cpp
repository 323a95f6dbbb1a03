// What people read while training: order, width, no value twice.
#include "tutti/trainer/loggers/console.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti::trainer {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

Progress some_progress() {
  Progress p;
  p.epoch = 2;
  p.epochs = 50;
  p.step = 120;
  p.steps = 3000;
  p.train = {{"acc", 0.5}, {"cer", 0.25}, {"loss", 1.25}, {"loss_ctc", 1.25}, {"loss_att", 2.5}};
  p.lr = 0.001;
  p.audio_per_second = 93;
  p.seconds_left = 3780;
  return p;
}

TEST(Console, LossComesFirstAndNoLossTwice) {
  EXPECT_EQ(describe_numbers(some_progress().train, 100),
            "loss=1.25, acc=0.5, cer=0.25, loss_att=2.5");
  EXPECT_EQ(describe_numbers({{"b", 1}, {"a", 1}}, 100), "a=1, b=1");
}

TEST(Console, ALogLineHasEachValueOnce) {
  EXPECT_EQ(log_line(some_progress()),
            "epoch 2/50, step 120/3000: loss=1.25, acc=0.5, cer=0.25; lr=0.001, "
            "93 s audio/s, eta 1h03m");
}

TEST(Console, LogLinesStayShortWhateverTheModelReports) {
  Progress p = some_progress();
  EpochRow row{.epoch = 2, .step = 120, .seconds = 62, .best = true};
  for (int i = 0; i < 40; ++i) p.train["a_metric_with_a_name_" + std::to_string(i)] = 1.0 / 3;
  row.train = row.valid = p.train;
  for (const std::string& line : {log_line(p), log_line(row)}) {
    EXPECT_LE(line.size(), kLineWidth) << line;
    EXPECT_THAT(line, HasSubstr(": loss=1.25"));
  }
  EXPECT_THAT(log_line(p), EndsWith("eta 1h03m"));
  p.seconds_left = 0;  // the last line of a run
  EXPECT_THAT(log_line(p), Not(HasSubstr("eta")));
  EXPECT_THAT(log_line(row), EndsWith("(best so far); 1m02s"));
}

TEST(Console, TheProgressLineFitsTheTerminal) {
  Progress p = some_progress();
  p.validation = 1.5;
  p.validation_name = "valid/loss";
  p.device_bytes = 3ull << 30;
  EXPECT_EQ(progress_line(p, 200),
            "[................] epoch 2/50, step 120/3000, loss 1.25, valid/loss 1.5, lr 0.001, "
            "93 s audio/s, eta 1h03m, GPU 3.0 GiB");
  EXPECT_EQ(progress_line(p, 100),
            "[................] epoch 2/50, step 120/3000, loss 1.25, valid/loss 1.5, "
            "93 s audio/s, eta 1h03m");
  EXPECT_EQ(progress_line(p, 80),
            "[........] epoch 2/50, step 120/3000, loss 1.25, valid/loss 1.5, eta 1h03m");
  EXPECT_EQ(progress_line(p, 40), "epoch 2/50, step 120/3000, loss 1.25");
}

TEST(Console, ANarrowTableOfEpochsHasTheLosses) {
  EpochRow row{.epoch = 1, .step = 10, .train = {{"loss", 2}}, .valid = {{"loss", 1.5}}};
  row.best = true;
  for (const std::size_t columns : {22, 40, 50, 60}) {
    const auto lines = EpochTable().add(row, columns);
    EXPECT_THAT(lines.at(0), HasSubstr("    loss"));
    EXPECT_EQ(lines.at(0).find("val loss") != std::string::npos, columns >= 40);
    EXPECT_LE(lines.at(1).size(), columns);
  }
  EXPECT_THAT(EpochTable().add(row, 60).at(0), HasSubstr("lr"));
}

TEST(Console, TheTableOfEpochsKeepsItsColumns) {
  EpochTable table;
  EpochRow row{.epoch = 1, .step = 10, .train = {{"loss", 2}}, .valid = {{"loss", 1.5}}};
  row.lr = 0.001;
  row.best = true;
  const auto first = table.add(row, 100);
  ASSERT_EQ(first.size(), 2U);
  EXPECT_THAT(first[0], HasSubstr("val loss"));
  EXPECT_THAT(first[1], EndsWith("*"));
  row.epoch = 2;
  row.best = false;
  row.valid.clear();
  const auto second = table.add(row, 100);
  ASSERT_EQ(second.size(), 1U);
  EXPECT_EQ(second[0].size(), first[0].size());
  EXPECT_THAT(second[0], Not(HasSubstr("*")));
}

TEST(Console, TheModelIsSummarisedByItsParts) {
  const auto parts =
      model_parts({{"net.encoder.a", 3000}, {"net.encoder.b", 1000}, {"net.decoder.weight", 1000}});
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].name, "net.encoder");
  EXPECT_EQ(parts[0].parameters, 4000);
  ModelSize size{
      .parts = parts, .parameters = 5000, .trained = 1000, .bytes = 20000, .type = "float32"};
  const auto lines = model_summary(size);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_THAT(lines[0], HasSubstr("80 %"));
  EXPECT_EQ(lines[2], "model: 5000 parameters (1000 trained), 19.5 KiB in float32");
}

}  // namespace
}  // namespace tutti::trainer
