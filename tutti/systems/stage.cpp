#include "tutti/systems/stage.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <set>
#include <thread>

#include "tutti/core/clock.h"
#include "tutti/core/crc32c.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/program.h"
#include "tutti/core/status.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"
#include "tutti/core/units.h"
#include "tutti/launch/rank.h"
#include "tutti/systems/input_files.h"
#include "tutti/systems/stages.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

std::optional<int> launcher_rank() { return launch::launched_rank(launch::current_environment()); }

const config::Node& config_of(const StageContext& context, Needs needs) {
  switch (needs) {
    case Needs::kTraining:
      return context.training;
    case Needs::kInference:
      return context.inference;
    case Needs::kMetrics:
      return context.metrics;
    case Needs::kDemo:
      return context.demo;
  }
  return context.training;
}

std::string_view flag_of(Needs needs) {
  switch (needs) {
    case Needs::kTraining:
      return "--training_config";
    case Needs::kInference:
      return "--inference_config";
    case Needs::kMetrics:
      return "--metrics_config";
    case Needs::kDemo:
      return "--demo_config";
  }
  return "--config";
}

// `alone`: --config means its config; of several stages it means that of training.
[[noreturn]] void refuse_without_config(const Stage& stage, bool alone) {
  const std::string flag(flag_of(stage.needs));
  const std::string file = "conf/" + flag.substr(2, flag.rfind('_') - 2) + ".yaml";
  throw ConfigError(
      fmt::format("stage {} needs {}{} FILE", stage.name, alone ? "--config FILE, or " : "", flag),
      fmt::format("name its config file, as in: {} {}", alone ? "--config" : flag, file));
}

fs::path record_path(const Stage& stage, const StageContext& context) {
  return context.folder(stage.folder_key) / ".stages" / (stage.name + ".json");
}

// What the record of a stage was made from; empty when it never finished.
Fingerprint recorded_inputs(const fs::path& record) {
  if (!fs::exists(record)) return {};
  return Fingerprint(
      parse_json(read_file(record), record.string()).value("inputs", Json::object()));
}

bool is_up_to_date(const Stage& stage, const fs::path& record, const Fingerprint& inputs) {
  if (inputs.empty()) return false;
  const Fingerprint before = recorded_inputs(record);
  if (!stage.only_checks) return before == inputs;
  for (const auto& [name, value] : inputs.json().items())
    if (!before.json().contains(name) || before.json()[name] != value) return false;
  return true;
}

// An output of the stage that is not there (any more); empty: all are.
fs::path missing_output(const Stage& stage, const StageContext& context) {
  if (!stage.outputs) return {};
  for (const fs::path& file : stage.outputs(context))
    if (!fs::exists(file)) return file;
  return {};
}

// The log of this run; one that is there already becomes STAGE1.jsonl, STAGE2.jsonl, ... (the first
// number that is free). Ranks that a driver on this machine started have files of their own: the
// driver's log is not theirs to move.
fs::path log_path(const Stage& stage, const fs::path& folder, const std::optional<int>& rank) {
  const std::string name = rank ? fmt::format("{}_rank{}", stage.name, *rank) : stage.name;
  const fs::path path = folder / "logs" / (name + ".jsonl");
  if (!fs::exists(path)) return path;
  for (int number = 1;; ++number) {
    const fs::path old = folder / "logs" / fmt::format("{}{}.jsonl", name, number);
    if (fs::exists(old)) continue;
    fs::rename(path, old);
    return path;
  }
}

// Waits for what rank 0 does alone: `srun tutti run --stages collect_stats train` starts every rank
// at once. The launcher ends us if rank 0 fails.
void wait_for_rank_zero(const Stage& stage, const StageContext& context) {
  if (!stage.inputs) return;
  double last_word = Clock::system().unix_seconds();
  const fs::path record = record_path(stage, context);
  std::optional<std::string> seen;  // inputs are read anew only when rank 0 has written its record
  while (true) {
    const std::string text = fs::exists(record) ? read_file(record) : "";
    if (text != seen) {
      const Fingerprint inputs = stage.inputs(context);
      if (inputs.empty() ||
          (is_up_to_date(stage, record, inputs) && missing_output(stage, context).empty()))
        return;
      seen = text;
    }
    if (const double now = Clock::system().unix_seconds(); now - last_word > 60) {
      log::info("waiting for rank 0 to finish {}", stage.name);
      last_word = now;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

// What anyone needs to know of a run later: the command, the code, the machine, the whole config.
void log_beginning(const Stage& stage, const StageContext& context) {
  const auto commit = run_command(
      {.argv = {"git", "describe", "--always", "--dirty"}, .timeout = std::chrono::seconds(5)});
  log::debug("command: {}", join(context.command, " "));
  log::debug("host: {}; git: {}", host_name(),
             commit.ok() ? trim(commit.out) : std::string_view("none"));
  log::debug("config:\n{}", config::to_yaml(config_of(context, stage.needs)));
}

bool train_follows(const std::vector<Stage>& stages, const Stage& stage) {
  bool seen = false;
  for (const auto& other : stages) {
    if (seen && other.name == "train") return true;
    seen = seen || other.name == stage.name;
  }
  return false;
}

// What a later stage would refuse is said before an earlier one replaces files.
void refuse_early(const std::vector<Stage>& stages, const StageContext& context) {
  config::Problems problems;
  std::set<Needs> seen;
  const bool trains = std::any_of(stages.begin(), stages.end(),
                                  [](const Stage& stage) { return stage.name == "train"; });
  for (const Stage& stage : stages) {
    // What packs, scores or shows needs no corpora.
    const bool reads = stage.number < 7;
    if (!reads || !seen.insert(stage.needs).second) continue;
    if (stage.needs == Needs::kTraining)
      check_input_files(config::FileKind::kTraining, context.training, problems,
                        trains ? InputFiles::kAll : InputFiles::kData);
    if (stage.needs == Needs::kInference)
      check_input_files(config::FileKind::kInference, context.inference, problems);
    if (stage.needs == Needs::kInference && trains)
      check_average_name(context.training, context.inference, problems);
  }
  problems.throw_if_any();
  StageContext early = context;
  for (const Stage& stage : stages) {
    if (stage.refuse && &stage != &stages.front()) stage.refuse(early);
    early.makes_tokens = early.makes_tokens || stage.name == "train_tokenizer";
  }
}

log::Level log_level(const StageContext& context) {
  return context.request.quiet ? log::Level::kWarning : log::Level::kInfo;
}

// What a stage that refused its config leaves of a folder that was not there before: nothing, unless it did some work.
void remove_unused(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename() != ".stages" && entry.path().filename() != "logs") return;
  fs::remove_all(folder);
}

// `place` is "3 of 8: " where a command has several stages. Returns whether every item of it was done.
bool run_one(const Stage& stage, const StageContext& context, const std::string& place,
             bool is_last) {
  const fs::path folder = context.folder(stage.folder_key);
  const Fingerprint inputs = stage.inputs ? stage.inputs(context) : Fingerprint();
  const fs::path record = record_path(stage, context);
  const fs::path gone = missing_output(stage, context);
  if (!context.request.force && gone.empty() && is_up_to_date(stage, record, inputs)) {
    log::info("{}: up to date, skipped (--force to redo)", stage.name);
    return true;
  }
  const std::optional<int> rank = launcher_rank();
  if (stage.refuse && !rank) stage.refuse(context);
  const bool is_new = !fs::exists(folder);
  make_folders(record.parent_path());
  const bool writes_files = rank.value_or(0) == 0;
  const bool every_rank_logs =
      context.training["stage_log_mode"].value_or<std::string>("rank0") == "per_rank";
  log::Options logging{.level = log_level(context), .rank = rank, .stage = stage.name};
  if (writes_files || every_rank_logs) logging.jsonl_path = log_path(stage, folder, rank);
  log::configure(logging);
  if (writes_files) log_beginning(stage, context);
  if (!rank) log::info("{}{}", place, stage.summary);
  const Fingerprint before = recorded_inputs(record);
  if (!rank && !before.empty() && !gone.empty())
    log::info("runs again, since {} is gone", shown_path(gone));
  else if (!rank && !before.empty() && !(before == inputs))
    log::info("{} {}", stage.name == "train" ? "since it was run last:" : "runs again, since",
              join(inputs.changes_since(before, 3), "; "));
  // From here on the output is neither the old nor the new one until the stage has ended.
  if (std::error_code absent; writes_files) fs::remove(record, absent);
  const double begin = Clock::system().unix_seconds();
  bool left_unfinished = false;
  StageContext own = context;
  own.left_unfinished = &left_unfinished;
  bool items_failed = false;
  own.items_failed = &items_failed;
  own.is_last = is_last;
  try {
    stage.run(own);
  } catch (const std::exception& e) {
    log::debug("stopped: {}", e.what());
    log::configure({.level = log_level(context)});
    if (is_new && writes_files && dynamic_cast<const ConfigError*>(&e) != nullptr)
      remove_unused(folder);
    throw;
  }
  const double seconds = Clock::system().unix_seconds() - begin;
  if (left_unfinished || items_failed) {
    log::configure({.level = log_level(context)});
    return !items_failed;
  }
  if (!writes_files) return true;
  // Empty while its output was not there.
  const Fingerprint made_from = inputs.empty() && stage.inputs ? stage.inputs(context) : inputs;
  write_file_atomic(record, Json{{"stage", stage.name},
                                 {"finished", utc_timestamp(Clock::system().unix_seconds())},
                                 {"seconds", seconds},
                                 {"inputs", made_from.json()}}
                                    .dump(1) +
                                "\n");
  if (!rank) log::info("done in {}", format_duration(seconds));
  log::configure({.level = log_level(context)});
  return true;
}

}  // namespace

fs::path StageContext::folder(std::string_view key) const {
  for (const config::Node* node : {&training, &inference, &metrics, &demo})
    if (!(*node)[key].is_null()) return (*node)[key].as<std::string>();
  throw ConfigError(fmt::format("{}: got nothing, expected a folder", key),
                    fmt::format("add {}: PATH to the config", key));
}

StageRegistry& stage_registry() {
  static StageRegistry stages = builtin_stages();
  return stages;
}

std::vector<Stage> all_stages() {
  std::vector<Stage> ordered;
  int next_number = 0;
  for (const Stage& stage : stage_registry()) next_number = std::max(next_number, stage.number);
  for (Stage stage : stage_registry()) {
    if (stage.number == 0) stage.number = ++next_number;
    auto place = ordered.end();
    if (!stage.after.empty()) {
      place = std::find_if(ordered.begin(), ordered.end(),
                           [&](const Stage& other) { return other.name == stage.after; });
      if (place == ordered.end())
        throw ConfigError(fmt::format("stage {} follows '{}', which is no stage before it",
                                      stage.name, stage.after));
      ++place;
    }
    ordered.insert(place, std::move(stage));
  }
  return ordered;
}

std::vector<Stage> select_stages(const std::vector<std::string>& names) {
  std::vector<std::string> known;
  for (const auto& stage : all_stages()) known.push_back(stage.name);
  for (const auto& name : names) {
    if (name == "all" || std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string guess = closest_match(name, known);
    throw ConfigError(fmt::format("unknown stage '{}'", name),
                      guess.empty() ? "known stages: " + join(known, ", ")
                                    : fmt::format("did you mean '{}'?", guess));
  }
  const bool all = std::find(names.begin(), names.end(), "all") != names.end();
  std::vector<Stage> chosen;
  for (const auto& stage : all_stages())
    if (all ? stage.name != "demo"
            : std::find(names.begin(), names.end(), stage.name) != names.end())
      chosen.push_back(stage);
  return chosen;
}

std::vector<Stage> select_stages(int first, int last) {
  std::vector<Stage> chosen;
  for (const auto& stage : all_stages())
    if (stage.number >= first && stage.number <= last) chosen.push_back(stage);
  if (chosen.empty())
    throw ConfigError(fmt::format("no stage from {} to {}; stages are 1 to {}", first, last,
                                  all_stages().size()));
  return chosen;
}

bool run_stages(const std::vector<Stage>& stages, const StageContext& context, bool dry_run) {
  bool whole = true;
  for (const auto& stage : stages)
    if (!config_of(context, stage.needs).defined())
      refuse_without_config(stage, stages.size() == 1);
  if (!dry_run && !launcher_rank()) refuse_early(stages, context);
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const Stage& stage = stages[i];
    if (dry_run) {
      fmt::print("{:2} {:16} {}\n", stage.number, stage.name, stage.summary);
    } else if (stage.name == "train" || launcher_rank().value_or(0) == 0) {
      const std::string place =
          stages.size() > 1 ? fmt::format("{} of {}: ", i + 1, stages.size()) : "";
      whole = run_one(stage, context, place, i + 1 == stages.size()) && whole;
    } else if (train_follows(stages, stage)) {
      wait_for_rank_zero(stage, context);
    }
  }
  return whole;
}

void assign_config(const std::vector<Stage>& stages, const std::vector<fs::path>& files,
                   ContextRequest& request) {
  if (files.empty() || stages.empty()) return;
  const bool one_kind = std::all_of(stages.begin(), stages.end(),
                                    [&](const Stage& s) { return s.needs == stages[0].needs; });
  const Needs needs = one_kind ? stages[0].needs : Needs::kTraining;
  auto& target = needs == Needs::kTraining    ? request.training
                 : needs == Needs::kInference ? request.inference
                 : needs == Needs::kMetrics   ? request.metrics
                                              : request.demo;
  target.insert(target.end(), files.begin(), files.end());
}

}  // namespace tutti::systems

void tutti::config::PluginKind<tutti::systems::Stage>::add(Registry& stages, systems::Stage stage) {
  for (const systems::Stage& other : stages)
    if (other.name == stage.name)
      throw ConfigError("there is a stage '" + stage.name + "' already", "choose another name");
  stages.push_back(std::move(stage));
}
