// The checkpoints of one run: written in the background, the best kept, the newest whole one found.
//
//   CheckpointStore store("exp/checkpoints", {.criteria = {{"valid/loss", Better::kLower, 5}}});
//   store.save(snapshot, {.epoch = 3, .step = 1200, .metrics = metrics});   // returns at once
//   store.flush();                                                          // throws what went wrong
//
// Layout: step-00001200/ (the newest `keep_last`, and the best of the first criterion), last and
// best -> step-00001200, epoch3_step1200_valid.loss.safetensors (the best k per criterion, weights
// only; a hard link into the step folder, so it costs nothing), best.json,
// epoch3_step1200.safetensors (asked for), valid.loss.ave_5best.{pth,safetensors,json}.
//
// Rank 0 only, unless ranks hold parts of the model: then each has one. save() waits only if the
// previous save is still being written. Used by one thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/trainer/checkpoint/best_lists.h"
#include "tutti/trainer/checkpoint/checkpoint.h"
#include "tutti/trainer/checkpoint/shared.h"

namespace tutti::trainer {

// PATH.before, which is free then: an earlier one becomes PATH.before.1, PATH.before.2, ...
std::filesystem::path room_aside(const std::filesystem::path& path);

enum class Better { kLower, kHigher };

struct Criterion {
  std::string metric;  // "valid/loss"
  Better better = Better::kLower;
  int keep = 1;            // how many of the best
  int every_n_epochs = 1;  // of the saves in every n-th epoch
};

struct SaveInfo {
  std::int64_t epoch = 0;
  std::int64_t step = 0;
  std::map<std::string, double> metrics;  // of a validation at this step; may be empty
  bool keep = false;                      // its weights stay for good
};

// What the store keeps of it in trainer.json, for finish(). None: of an older program.
std::optional<SaveInfo> save_info_of(const Json& trainer);

struct BestFile {
  std::filesystem::path file;
  double value = 0;
  std::int64_t epoch = 0;
  std::int64_t step = 0;
};

class CheckpointStore {
 public:
  struct Options {
    int keep_last = 2;  // two, so that a damaged newest one has a predecessor
    std::vector<Criterion> criteria;
    int average_best = 0;  // how many of each criterion write_averages takes; 0: all it keeps
    // Shared saves: other ranks than 0 only write their parts; rank 0 waits for them until this,
    // called by the writer's thread, says that they will not come.
    int rank = 0;
    std::function<bool()> give_up;
  };
  struct Found {
    std::filesystem::path folder;
    Checkpoint checkpoint;
  };

  CheckpointStore(std::filesystem::path folder, Options options);
  // Finishes the write under way; its error, if any, is logged.
  ~CheckpointStore();

  // Takes a snapshot that nobody else changes. Throws the IoError of an earlier save.
  // `shared`: all ranks write this checkpoint together.
  void save(Checkpoint snapshot, SaveInfo info, std::optional<SharedSave> shared = std::nullopt);
  void flush();
  // The tensors of a snapshot that has been written, for the next one: fresh memory costs more than the
  // copy. Empty when none is free.
  Checkpoint take_back();

  // A run was killed when its newest checkpoint was whole and not yet among the best: does the rest of
  // that save. Before the first save(); nothing changes if all was done.
  void finish(const SaveInfo& info);

  // The newest whole checkpoint. A damaged one is reported as a warning and passed over. Reads from
  // any process; the others need no store.
  static std::optional<Found> newest(const std::filesystem::path& folder);

  // The same, checked but not read.
  static std::optional<std::filesystem::path> newest_folder(const std::filesystem::path& folder);

  // The checkpoint of the best validation by `criterion`, the first of those the run is given; checked
  // as above. Throws ConfigError if there is none.
  static std::filesystem::path best_folder(const std::filesystem::path& folder,
                                           const std::optional<Criterion>& criterion);
  // Going back to an earlier step: what was saved after it, and weights kept of later steps, move to
  // FOLDER.before.
  static void set_aside_after(const std::filesystem::path& folder, std::int64_t step);

  // Whether a run has saved anything there, whole or not.
  static bool has_any(const std::filesystem::path& folder);

  // Averages the best of each criterion; call after flush(). Returns the files written.
  std::vector<std::filesystem::path> write_averages();
  // Weights of the best of a list of best.json (the first criterion of a metric has its name), best
  // first.
  std::vector<std::filesystem::path> best(const std::string& list) const;
  // The best of all; call after flush(), or before the first save().
  std::optional<BestFile> top(const Criterion& criterion) const;
  double seconds_waited() const;  // how long save() has blocked training so far

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::trainer
