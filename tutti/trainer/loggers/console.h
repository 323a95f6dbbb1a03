// Training as people read it, as text: the progress line of a terminal, the plain lines of a log
// file, the table of epochs, the model, the last word. Values only; who prints what is report.cpp.
//
// Every line is shorter than kLineWidth with the log's own "12:00:00 [train] " before it. The loss
// comes first and no value twice; what does not fit is in metrics.jsonl.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tutti::trainer {

using Numbers = std::map<std::string, double>;  // by name, without "train/" or "valid/"

inline constexpr std::size_t kLineWidth = 100;

struct Progress {
  std::int64_t epoch = 0;              // counted from 1
  std::optional<std::int64_t> epochs;  // in all
  std::int64_t step = 0;               // optimizer steps done
  std::optional<std::int64_t> steps;   // in all
  Numbers train;                       // of the last log interval
  std::optional<double> validation;    // the watched metric of the last validation
  std::string validation_name;         // "valid/loss"
  double lr = 0;
  double audio_per_second = 0;  // 0: not known
  double items_per_second = 0;
  double wait_share = 0;         // of the rank that waits for data most
  std::optional<int> wait_rank;  // where there are several
  std::optional<double> seconds_left;
  std::uint64_t device_bytes = 0;  // most held on the GPU; 0: no GPU
};

// "loss=1.234, acc=0.567": the loss, then the rest by name; losses equal to one before are left out.
// Ends before `width`.
std::string describe_numbers(const Numbers& numbers, std::size_t width);

// "epoch 2/50, step 120/3000: loss=1.234, acc=0.567; lr=0.001, 93 s audio/s, wait 2 %, eta 1h03m"
std::string log_line(const Progress& progress);
// The same for a terminal of so many columns, with a bar where there is room for it.
std::string progress_line(const Progress& progress, std::size_t columns);

struct EpochRow {
  std::int64_t epoch = 0;  // counted from 1
  std::int64_t step = 0;
  Numbers train;
  Numbers valid;
  double lr = 0;
  double seconds = 0;
  bool best = false;  // of all so far
};
// "epoch 2 done (step 240): loss=1.2; valid: loss=1.3, acc=0.5 (best so far); 1m02s"
std::string log_line(const EpochRow& row);

// On a terminal: a line per epoch under a header that is made of the first row.
class EpochTable {
 public:
  // The header (once) and the row, as lines.
  std::vector<std::string> add(const EpochRow& row, std::size_t columns);

 private:
  std::vector<std::pair<bool, std::string>> metrics_;  // of validation or training; name
  bool started_ = false, has_step_ = true, has_rate_ = true, has_time_ = true;
};

struct ModelPart {
  std::string name;
  std::int64_t parameters = 0;
};
struct ModelSize {
  std::vector<ModelPart> parts;  // in the model's order
  std::int64_t parameters = 0;
  std::int64_t trained = 0;
  std::uint64_t bytes = 0;
  std::string type;  // "float32"
};
// Parts by the first dotted part of the names that tells them apart.
std::vector<ModelPart> model_parts(const std::vector<std::pair<std::string, std::int64_t>>& sizes);
// A line per part (the largest ten), then the sum.
std::vector<std::string> model_summary(const ModelSize& model);

}  // namespace tutti::trainer
