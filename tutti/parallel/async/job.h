// An asynchronous run as it lies in its output folder, D/.tutti/async/:
//
//   job.json       what to do: the job, the pieces, how to start more workers (never changes)
//   claims/        who does which piece (board.h)
//   workers/NAME   one per worker process: who it is, and its heartbeat
//   jobs/N         what was submitted to the scheduler
//   stop           present: take no new item; why, and who said so
//
// and D/journal/async-NAME.journal per worker process. Internal to the room.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/parallel/async/board.h"
#include "tutti/parallel/backends/backend.h"
#include "tutti/parallel/client.h"
#include "tutti/parallel/folder/beat_watch.h"
#include "tutti/parallel/folder/other_writers.h"
#include "tutti/parallel/wire/job_spec.h"
#include "tutti/parallel/wire/process_identity.h"

namespace tutti::parallel {

using Piece = std::vector<wire::IndexRange>;

// What results.jsonl calls an item.
struct ItemNames {
  // 7, "7", item 7 of an item file, or the JSON value in the line of its place among the indices
  enum class Kind { kIndex, kNumber, kLine, kJsonLine };
  Kind kind = Kind::kIndex;
  std::filesystem::path file;
};
std::function<Json(std::uint64_t)> make_item_of(const ItemNames& names, const Indices& indices);

struct AsyncJob {
  std::string generation;  // tells the workers of two submissions in one folder apart
  JobSpec spec;
  std::uint64_t fingerprint_hash = 0;
  Indices indices{0, 0};
  std::vector<Piece> pieces;
  ItemNames item_names;
  ParallelSettings settings;
  std::vector<std::string> program;  // how to call this program on a node
  double beat_s = 0.5;
  double stale_s = 20;  // a worker without a heartbeat for so long has lost its claims
  double submitted = 0;
  ProcessIdentity submitter;  // tells on which machine local workers are

  void write(const std::filesystem::path& async_folder) const;
  // Throws IoError when there is none or another user could have written it, DataError when it is not one.
  static AsyncJob read(const std::filesystem::path& async_folder);
};

std::filesystem::path async_folder(const std::filesystem::path& output_folder);
std::string async_journal_name(const std::string& worker);

// Cuts the work into pieces, in order: small enough that a slow worker does not hold up the end,
// shrinking to single batches towards it, few enough that claiming them costs nothing.
std::vector<Piece> cut_into_pieces(const std::vector<wire::IndexRange>& work, int n_workers,
                                   std::uint64_t batch_size);

// The stop file: the first who writes it is right.
struct StopNote {
  bool now = false;  // do not let running items finish
  int exit_code = 0;
  std::string reason;
};
void request_stop(const std::filesystem::path& async_folder, const StopNote& note);
std::optional<StopNote> stop_requested(const std::filesystem::path& async_folder);

// A worker's file, as others see it.
struct WorkerNote {
  std::string name;
  int id = 0;
  ProcessIdentity process;
  ProcessIdentity supervisor;  // starts another when the process dies
  std::uint64_t beat = 0;
  double unix_seconds = 0;  // of the beat, by the worker's clock
  double started = 0;
  std::string phase;  // "building", "ready", "idle", "merging"
  std::string job_id;
  std::uint64_t items = 0;
  double busy_s = 0;
  std::uint64_t rss_bytes = 0;
  bool leaving = false;  // does nothing more but say so
  bool left = false;
  std::string error;  // why the env could not be built, or the worker could not go on
  int exit_code = 0;  // of what ended it, where it could not go on

  std::string to_text() const;
  // Exact for processes of this machine; of others by the change of their beat since earlier looks
  // (at the first look they count as alive).
  BeatWatch::Sign sign_of_life(BeatWatch& watch) const;
  // The process has died and its supervisor, on this machine, is about to start another.
  bool comes_back() const;
};
std::filesystem::path worker_note_path(const std::filesystem::path& async_folder,
                                       const std::string& name);
std::vector<WorkerNote> read_worker_notes(const std::filesystem::path& async_folder);
std::optional<WorkerNote> read_worker_note(const std::filesystem::path& async_folder,
                                           const std::string& name);

}  // namespace tutti::parallel
