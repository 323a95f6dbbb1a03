// The page that measure leaves in an experiment's folder, from files as training and scoring leave them.
#include "tutti/systems/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/core/file.h"
#include "tutti/core/json.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class ReportPage : public testing::Test {
 protected:
  ReportPage() {
    exp_dir_ = folder_.path() / "digits/exp/small";
    for (const char* name : {"logs", "inference", "checkpoints/last"})
      make_folders(exp_dir_ / name);
    write_file_atomic(exp_dir_ / "checkpoints/last/trainer.json",
                      R"({"epoch": 3, "step": 120, "seconds": 185.0, "world_size": 2})");
    write_file_atomic(exp_dir_ / "logs/train_rank0.jsonl",
                      "{\"message\": \"model: 0.35 M parameters, 1.4 MiB in float32\"}\n"
                      "{\"message\": \"strategy ddp, 2 ranks, precision 32, device cpu\"}\n");
    std::string lines;
    for (int step = 10; step <= 120; step += 10)
      lines += Json{{"step", step},
                    {"train/loss", 300.0 / step},
                    {"train/loss_ctc", 300.0 / step},
                    {"train/acc", step / 200.0},
                    {"time/step", 0.5},
                    {"time/data", 0.1 + step * 1e-3},
                    {"throughput/audio_seconds_per_second", 90.0 + step},
                    {"optim0_lr0", step * 1e-5}}
                   .dump() +
               "\n";
    for (int step = 40; step <= 120; step += 40)
      lines +=
          Json{{"step", step}, {"train/loss_epoch", 310.0 / step}, {"valid/loss", 1.0}}.dump() +
          "\n";
    write_file_atomic(exp_dir_ / "metrics.jsonl", lines);
    write_file_atomic(
        exp_dir_ / "inference/metrics.json",
        R"({"espnet3.systems.asr.metrics.wer.WER": {"voices": {"WER": 12.5, "ci95": [8.0, 17.1],
                          "substitutions": 31, "deletions": 4, "insertions": 15, "utterances": 60,
                          "utterances_with_errors": 22}}})");
    page_ = read_file(write_report(
        {.exp_dir = exp_dir_,
         .inference_dir = exp_dir_ / "inference",
         .training = config::from_json({{"recipe_dir", (folder_.path() / "digits").string()},
                                        {"exp_dir", exp_dir_.string()}})}));
  }
  std::size_t at(const std::string& title) const {
    return page_.find("font-weight=\"600\" fill=\"currentColor\">" + title + "</text>");
  }

  TempFolder folder_;
  fs::path exp_dir_;
  std::string page_;
};

TEST_F(ReportPage, SaysWhichRunItIsAndWhatItTook) {
  EXPECT_THAT(page_, HasSubstr("<title>digits: small</title>"));
  EXPECT_THAT(page_, HasSubstr("3 epochs, 120 steps in 3m05s"));
  EXPECT_THAT(page_, HasSubstr("0.35 M parameters"));
  EXPECT_THAT(page_, HasSubstr("<th>ranks</th><td>2</td>"));
}

TEST_F(ReportPage, ShowsTheLossFirstAndNothingTwice) {
  ASSERT_NE(at("loss"), std::string::npos);
  EXPECT_LT(at("loss"), at("acc"));
  EXPECT_LT(at("acc"), at("learning rate"));
  EXPECT_LT(at("learning rate"), at("seconds of audio per second"));
  EXPECT_LT(at("seconds of audio per second"), at("seconds per step"));
  ASSERT_NE(at("seconds per step"), std::string::npos);
  for (const char* gone : {"loss_ctc", "loss_epoch", "loss_ctc_epoch", "step", "optim0_lr0"})
    EXPECT_EQ(at(gone), std::string::npos) << gone;
}

TEST_F(ReportPage, CountsErrorsByKindAndTellsNoPlaces) {
  EXPECT_THAT(page_, HasSubstr("<td>voices</td><td>WER</td><td>12.5</td><td>8.0 to 17.1</td>"
                               "<td>31</td><td>4</td><td>15</td><td>60</td><td>22</td>"));
  EXPECT_THAT(page_, Not(HasSubstr(folder_.path().string())));
  EXPECT_THAT(page_, HasSubstr("exp_dir: ./exp/small"));
}

}  // namespace
}  // namespace tutti::systems
