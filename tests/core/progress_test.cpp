#include "tutti/core/progress.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(Progress, BarsFillFromLeftToRight) {
  EXPECT_EQ(progress_bar(0), "[................] ");
  EXPECT_EQ(progress_bar(0.25), "[####............] ");
  EXPECT_EQ(progress_bar(1), "[################] ");
  EXPECT_EQ(progress_bar(7), progress_bar(1)) << "more came than was announced";
  EXPECT_EQ(progress_bar(-1), progress_bar(0));
  EXPECT_EQ(progress_bar(0.5, 8), "[####....] ");
}

TEST(Progress, ANarrowLineLosesWholePartsAndTheBarBeforeTheEta) {
  const std::string text = "14/60 items (23 %), 60.93/s, ETA 755 ms, 2 workers (busy 64-71 %)";
  EXPECT_EQ(fitted_line(0.25, text, 100), "[####............] " + text);
  EXPECT_EQ(fitted_line(0.25, text, 79),
            "[####............] 14/60 items (23 %), 60.93/s, ETA 755 ms");
  EXPECT_EQ(fitted_line(0.25, text, 39), "14/60 items (23 %), 60.93/s, ETA 755 ms");
  EXPECT_EQ(fitted_line(0.25, text, 38), "14/60 items (23 %), 60.93/s");
  EXPECT_EQ(fitted_line(0.25, text, 5), "14/60");
}

TEST(Progress, LinesSayHowFarHowFastAndHowLong) {
  EXPECT_EQ(ProgressBar::line("checking train", 250, 1000, 2.0),
            "checking train: 250/1000 (25 %), 125/s, ETA 6.0 s");
  EXPECT_EQ(ProgressBar::line("files", 0, 10, 0.0), "files: 0/10 (0 %), 0/s, ETA ?");
  EXPECT_EQ(ProgressBar::line("files", 12, 10, 6.0), "files: 12/10 (120 %), 2/s");
}

}  // namespace
}  // namespace tutti
