// Where numbers go: TensorBoard, CSV, JSONL. Rank 0 only; logging never communicates.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "tutti/trainer/metrics.h"

namespace tutti::trainer {

struct LogPoint {
  std::int64_t step = 0;   // optimizer steps done
  std::int64_t epoch = 0;  // the epoch the numbers are of
};

// Used by one thread. Errors are IoError.
class Logger {
 public:
  virtual ~Logger() = default;
  virtual void log(const LogPoint& at, const Metrics& metrics) = 0;
  virtual void flush() = 0;
  // The run goes on after `step` (-1: begins): what was logged of later ones, by a process that was killed before
  // it saved, is forgotten. `at_the_end`: so is what ends that step (validation, epoch), which is
  // done again.
  virtual void rewind(std::int64_t /*step*/, bool /*at_the_end*/) {}
};

// Whether a number belongs to a step's end: valid/..., ..._epoch.
bool is_of_the_end(const std::string& metric);

// FOLDER/events.out.tfevents.<time>.<host>.<pid>: scalars, as TensorBoard reads them.
std::unique_ptr<Logger> make_tensorboard_logger(const std::filesystem::path& folder);
// FOLDER/metrics.csv as Lightning writes it: a column per metric by name, epoch and step among them;
// the file is rewritten when a new metric appears, so that it always has one header. Lines are
// written `every` at a time.
std::unique_ptr<Logger> make_csv_logger(const std::filesystem::path& folder, int every = 1);

struct MlflowOptions {
  std::filesystem::path folder;  // of the store
  std::string experiment;
  std::string run;             // its name
  std::filesystem::path note;  // where the run's id is kept, so that a resumed run goes on in it
  std::map<std::string, std::string> tags;
};
// A run in MLflow's file store.
std::unique_ptr<Logger> make_mlflow_logger(const MlflowOptions& options);
// Names become prefix-name, as Lightning's loggers write them. An empty prefix gives `logger` back.
std::unique_ptr<Logger> with_prefix(const std::string& prefix, std::unique_ptr<Logger> logger);
// A line per call: {"step":10,"epoch":0,"train/loss":1.5}
std::unique_ptr<Logger> make_jsonl_logger(const std::filesystem::path& path);

}  // namespace tutti::trainer
