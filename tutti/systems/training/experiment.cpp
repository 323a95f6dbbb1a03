#include "tutti/systems/training/experiment.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>

#include "tutti/config/load.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/parallel/folder/folder_lock.h"
#include "tutti/speech/models/model_config.h"
#include "tutti/systems/experiment_config.h"
#include "tutti/systems/training/kept_tokens.h"
#include "tutti/systems/training/training_model.h"
#include "tutti/trainer/checkpoint/store.h"
#include "tutti/trainer/from_config.h"
#include "tutti/trainer/limits.h"
#include "tutti/trainer/loggers/folders.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

// Blocks and keys that do not decide what the weights become: how long, where, by whom, what is
// logged and kept. The number of ranks and of batches per step do change them, but going on with
// other machines is daily business; the trainer says what it means.
const std::vector<std::string>& free_keys() {
  static const std::vector<std::string> keys = {"best_model_criterion",
                                                "create_dataset",
                                                "data_dir",
                                                "dataset.test",
                                                "dataset_dir",
                                                "dump_dir",
                                                "exp_dir",
                                                "exp_tag",
                                                "fit",
                                                "num_device",
                                                "num_nodes",
                                                "parallel",
                                                "plugins",
                                                "recipe_dir",
                                                "stage_log_dirs",
                                                "stage_log_mode",
                                                "stats_dir",
                                                "tokenizer",
                                                "trainer.accelerator",
                                                "trainer.activation_checkpointing",
                                                "trainer.accumulate_grad_batches",
                                                "trainer.benchmark",
                                                "trainer.check_val_every_n_epoch",
                                                "trainer.cuda_graphs",
                                                "trainer.default_root_dir",
                                                "trainer.detect_anomaly",
                                                "trainer.devices",
                                                "trainer.enable_checkpointing",
                                                "trainer.enable_model_summary",
                                                "trainer.enable_progress_bar",
                                                "trainer.fast_dev_run",
                                                "trainer.limit_val_batches",
                                                "trainer.log_every_n_steps",
                                                "trainer.logger",
                                                "trainer.max_epochs",
                                                "trainer.max_steps",
                                                "trainer.max_time",
                                                "trainer.min_epochs",
                                                "trainer.min_steps",
                                                "trainer.num_nodes",
                                                "trainer.num_sanity_val_steps",
                                                "trainer.profiler",
                                                "trainer.requeue_signal",
                                                "trainer.strategy",
                                                "trainer.timeout",
                                                "trainer.val_check_interval",
                                                "validate_dataset"};
  return keys;
}

// Under any block.
bool is_free_name(const std::string& name) {
  static const std::vector<std::string> names = {
      "num_workers",  "prefetch_factor", "prefetch", "pin_memory", "persistent_workers",
      "total_shards", "dist_world_size", "on_bad",   "plan_cache"};
  return std::find(names.begin(), names.end(), name) != names.end();
}

constexpr std::size_t kShownDifferences = 20;

bool is_under(const std::string& key, const std::string& block) {
  return key == block || key.rfind(block + ".", 0) == 0;
}

bool is_among(const std::string& key, const std::vector<std::string>& blocks) {
  return std::any_of(blocks.begin(), blocks.end(),
                     [&](const std::string& block) { return is_under(key, block); });
}

// Callbacks that only look, keep or stop.
void leave_out_watchers(Json& config) {
  if (!config.contains("trainer") || !config["trainer"].is_object()) return;
  Json& trainer = config["trainer"];
  if (!trainer.contains("callbacks") || !trainer["callbacks"].is_array()) return;
  static const std::vector<std::string> words = {
      "checkpoint", "earlystopping", "early_stopping", "monitor",
      "timer",      "stats",         "throughput",     "average_checkpoints"};
  Json rest = Json::array();
  for (const Json& callback : trainer["callbacks"]) {
    const std::string name = callback.is_object() ? callback.value("_target_", "") : "";
    std::string last = name.substr(name.rfind('.') + 1);
    std::transform(last.begin(), last.end(), last.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    if (std::none_of(words.begin(), words.end(),
                     [&](const std::string& word) { return last.find(word) != std::string::npos; }))
      rest.push_back(callback);
  }
  trainer["callbacks"] = rest;
  if (rest.empty()) trainer.erase("callbacks");
}

void flatten(const Json& node, const std::string& key, std::map<std::string, Json>& out) {
  const auto below = [&](const std::string& name) { return key.empty() ? name : key + "." + name; };
  if (node.is_object()) {
    for (const auto& [name, value] : node.items()) flatten(value, below(name), out);
  } else if (node.is_array()) {
    for (std::size_t i = 0; i < node.size(); ++i) flatten(node[i], below(std::to_string(i)), out);
  } else if (!node.is_null()) {
    out[key] = node;
  }
}

// A recipe or its data that was moved is the same one.
std::string moved(std::string text, const Json& before, const Json& now) {
  for (const char* root : {"exp_dir", "stats_dir", "data_dir", "recipe_dir"}) {
    const std::string from = before.value(root, ""), to = now.value(root, "");
    if (from.empty() || to.empty() || from == to) continue;
    if (text == from || text.rfind(from + "/", 0) == 0) return to + text.substr(from.size());
  }
  return text;
}

std::string shown(const Json* value) {
  if (!value) return "nothing";
  return value->is_string() ? value->get<std::string>() : value->dump();
}

std::string restart_variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

fs::path config_path(const fs::path& exp_dir) { return exp_dir / "config.yaml"; }

// The keys that name token files, by content: what was trained has its own copies.
class TokenFiles {
 public:
  TokenFiles(const StageContext& context, const fs::path& noted) {
    changes_ = token_changes(read_experiment_config(noted), context.training, compared_);
    if (context.makes_tokens) changes_.clear();  // those of now are not there yet
  }
  const std::vector<std::string>& compared() const { return compared_; }
  std::vector<ConfigDifference> differences(const std::vector<std::string>& accepted = {}) const {
    std::vector<ConfigDifference> out;
    for (const TokenChange& change : changes_)
      if (!is_among(change.key, accepted))
        out.push_back({change.key, change.before, change.now, change.resizes});
    return out;
  }
  // The overrides that go on with what was trained; empty where nothing changed.
  std::string way_back() const {
    if (changes_.empty()) return {};
    std::vector<std::string> words;
    for (const TokenChange& change : changes_)
      words.push_back(shell_quote(change.key + "=" + change.kept.string()));
    return fmt::format("{}  goes on with the tokens it was trained with\n    ", join(words, " "));
  }

 private:
  std::vector<std::string> compared_;
  std::vector<TokenChange> changes_;
};

bool wants_fresh_start(const StageContext& context) {
  return context.request.force ||
         context.training["fit"]["ckpt_path"].value_or<std::string>("") == "never";
}

// As reached_limits, of what the newest checkpoint has.
std::string reached_limits(const trainer::LoopSettings& loop) {
  const fs::path path = loop.checkpoint_folder / "last" / "trainer.json";
  if (!fs::exists(path)) return "";
  const Json state = Json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  if (!state.is_object()) return "";  // loading it will say so
  return trainer::reached_limits(loop, {.epoch = state.value("epoch", std::int64_t{0}),
                                        .step = state.value("step", std::int64_t{0}),
                                        .seconds = state.value("seconds", 0.0)});
}

// Rates are fractions; whole numbers, names and switches of these parts make other layers.
bool reshapes(const std::string& key, const Json* before, const Json* now) {
  static const std::vector<std::string> parts = {
      "model.decoder",    "model.decoder_conf",   "model.encoder",     "model.encoder_conf",
      "model.input_size", "model.joint_net_conf", "model.postencoder", "model.postencoder_conf",
      "model.preencoder", "model.preencoder_conf"};
  return is_among(key, parts) && !(before && before->is_number_float()) &&
         !(now && now->is_number_float());
}

// What --continue_with must name for all of them: blocks where the keys would fill a screen.
std::vector<std::string> names_of(const std::vector<ConfigDifference>& differences) {
  std::vector<std::string> names;
  for (const ConfigDifference& d : differences) {
    const std::string name =
        differences.size() > kShownDifferences ? d.key.substr(0, d.key.find('.')) : d.key;
    if (names.empty() || names.back() != name) names.push_back(name);
  }
  return names;
}

std::string describe(const std::vector<ConfigDifference>& differences) {
  std::vector<std::string> lines;
  for (const ConfigDifference& d : differences)
    lines.push_back(fmt::format("  {}: {} there, {} here", d.key, d.before, d.now));
  if (lines.size() > kShownDifferences) {
    lines.resize(kShownDifferences);
    lines.push_back(fmt::format("  and {} more", differences.size() - kShownDifferences));
  }
  return join(lines, "\n");
}

// The line about --continue_with in the ways on.
std::string way_to_continue(const std::vector<ConfigDifference>& differences,
                            const trainer::LoopSettings& loop) {
  const auto reshaped = std::find_if(differences.begin(), differences.end(),
                                     [](const ConfigDifference& d) { return d.reshapes; });
  if (reshaped != differences.end())
    return fmt::format("(not --continue_with: another {} gives the weights other shapes)",
                       reshaped->key);
  const bool model = std::any_of(differences.begin(), differences.end(),
                                 [](const auto& d) { return is_under(d.key, "model"); });
  const std::string limits = reached_limits(loop);
  return fmt::format("--continue_with {}  goes on from the last checkpoint with what is here{}{}",
                     join(names_of(differences), " "), model ? ", if its weights fit" : "",
                     limits.empty() ? "" : "; that run is finished: " + limits);
}

void refuse_changed_config(const StageContext& context, const fs::path& exp_dir,
                           const trainer::LoopSettings& loop) {
  const fs::path path = config_path(exp_dir);
  if (!fs::exists(path) || !trainer::CheckpointStore::has_any(loop.checkpoint_folder)) return;
  // Through text, so that both have gone the same way.
  const Json now =
      config::to_json(config::parse_yaml(config::to_yaml(context.training), "this config"));
  const Json before = config::to_json(config::parse_yaml(read_file(path), path.string()));
  const TokenFiles tokens(context, path);
  const auto all_but = [&](const std::vector<std::string>& accepted) {
    std::vector<std::string> left_out = tokens.compared();
    left_out.insert(left_out.end(), accepted.begin(), accepted.end());
    auto found = config_differences(before, now, left_out);
    for (auto& difference : tokens.differences(accepted)) found.push_back(std::move(difference));
    return found;
  };
  const auto& accepted = context.request.continue_with;
  if (all_but(accepted).empty()) return;
  const auto differences = all_but({});  // all: the next command must name them
  std::string text = describe(differences);
  // Only here: a job that comes back names what differs no more.
  for (const std::string& key : accepted)
    if (std::none_of(differences.begin(), differences.end(),
                     [&](const auto& d) { return is_under(d.key, key); }))
      text += fmt::format("\n--continue_with {}: that key does not differ", key);
  const bool follows_tag =
      exp_dir.filename() == context.training["exp_tag"].value_or<std::string>("");
  throw ConfigError(
      fmt::format("{} was trained with another config ({}):\n{}", exp_dir.string(), path.string(),
                  text),
      fmt::format("one of\n"
                  "    --force  starts over; the old checkpoints are kept in {}.before\n"
                  "    {}  trains it beside the old one\n"
                  "    {}{}",
                  loop.checkpoint_folder.filename().string(),
                  follows_tag ? "exp_tag=NAME" : "exp_dir=FOLDER", tokens.way_back(),
                  way_to_continue(differences, loop)));
}

// To begin again by itself would cost a user who only made room on the disk the whole training.
void refuse_weights_alone(const StageContext& context, const CheckpointHome& home) {
  const std::string from = context.training["fit"]["ckpt_path"].value_or<std::string>("last");
  if (!home.has_only_weights() || (from != "last" && from != "best")) return;
  throw ConfigError(
      fmt::format("{} has the best weights of a training, but its checkpoints (step-*) are gone: "
                  "there is nothing to go on from",
                  home.path().string()),
      "one of\n"
      "    --force  starts over; the weights are kept in checkpoints.before\n"
      "    exp_tag=NAME  trains beside it; init_param: FILE begins with its weights");
}

// Only training uses the list that the config names: stages before it replace it, those after it
// read the experiment's own.
void refuse_token_count(const StageContext& context) {
  const bool says = !context.training["model"]["vocab_size"].is_null();
  if (!says || context.makes_tokens || is_users_model(context.training)) return;
  config::Problems problems;
  speech::read_asr_settings(context.training, problems, {.read_files = false});
  problems.throw_if_any();
}

// `other`: what to use instead.
[[noreturn]] void throw_in_use(const fs::path& folder, const parallel::FolderLock::Holder& holder,
                               const std::string& other) {
  throw IoError(fmt::format("{}: process {} on {} has been training here since {}", folder.string(),
                            holder.pid, holder.host, holder.since),
                "wait for it, stop it (it saves and ends on SIGTERM), or use " + other);
}

constexpr const char* kOtherTag = "another exp_tag";

std::unique_ptr<parallel::FolderLock> lock_folder(const fs::path& folder, bool restarted,
                                                  const std::string& other) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(150);
  parallel::BeatWatch watch(parallel::FolderLock::kPatience);
  for (bool told = false;;) {
    const auto holder = parallel::FolderLock::holder(folder, watch);
    // Watched long enough: no need to do that once more.
    if (!holder.alive) return std::make_unique<parallel::FolderLock>(folder, 0.1);
    // Of another host: only the beats of the next minute tell whether it lives.
    if (holder.sure && (!restarted || std::chrono::steady_clock::now() >= deadline))
      throw_in_use(folder, holder, other);
    if (!std::exchange(told, true))
      log::info(
          "waiting for the lock of process {} on {}, which may be dead, or this job before it was "
          "started again",
          holder.pid, holder.host);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
}

// Of checkpoints outside of exp_dir; null: there are none.
std::unique_ptr<parallel::FolderLock> lock_home(const CheckpointHome& home, bool fresh_start,
                                                bool restarted) {
  if (!home.is_elsewhere()) return nullptr;
  home.refuse(fresh_start);  // before anything is written into a folder of others
  return lock_folder(home.path(), restarted, home.own_folder());
}

}  // namespace

std::vector<ConfigDifference> config_differences(const Json& before, const Json& now,
                                                 const std::vector<std::string>& accepted) {
  Json old_config = before, new_config = now;
  leave_out_watchers(old_config);
  leave_out_watchers(new_config);
  std::map<std::string, Json> a, b;
  flatten(old_config, "", a);
  flatten(new_config, "", b);
  std::map<std::string, int> keys;
  for (const auto& [key, value] : a) keys[key] = 0;
  for (const auto& [key, value] : b) keys[key] = 0;
  std::vector<ConfigDifference> out;
  for (const auto& [key, unused] : keys) {
    if (is_among(key, free_keys()) || is_among(key, accepted)) continue;
    if (is_free_name(key.substr(key.rfind('.') + 1))) continue;
    const auto x = a.find(key), y = b.find(key);
    if (x != a.end() && y != b.end()) {
      if (x->second == y->second) continue;
      if (x->second.is_string() && y->second.is_string() &&
          moved(x->second.get<std::string>(), before, now) == y->second.get<std::string>())
        continue;
    }
    const Json* was = x == a.end() ? nullptr : &x->second;
    const Json* is = y == b.end() ? nullptr : &y->second;
    out.push_back({key, shown(was), shown(is), reshapes(key, was, is)});
  }
  return out;
}

int restart_count() {
  return std::max(std::atoi(restart_variable("SLURM_RESTART_COUNT").c_str()),
                  std::atoi(restart_variable("TUTTI_RESTART_COUNT").c_str()));
}

void refuse_start(const StageContext& context) {
  if (restart_count() > 0) return;  // the lock may be our own
  const fs::path exp_dir = context.folder("exp_dir");
  const auto plan = trainer::plan_training(
      context.training, {.exp_dir = exp_dir, .rank = -1, .catalogue = context.catalogue.get()});
  if (plan.loop.fast_dev_run.batches > 0) return;  // it leaves nothing in the folder
  const CheckpointHome home(context, plan.loop);
  const auto refuse_trainer = [](const fs::path& folder, const std::string& other) {
    const auto holder = parallel::FolderLock::holder(folder);
    if (holder.alive && holder.sure) throw_in_use(folder, holder, other);
  };
  refuse_trainer(exp_dir, kOtherTag);
  if (home.is_elsewhere()) refuse_trainer(home.path(), home.own_folder());
  home.refuse(wants_fresh_start(context));
  // What was trained comes first: it says which tokens are its own.
  if (!wants_fresh_start(context)) {
    refuse_weights_alone(context, home);
    refuse_changed_config(context, exp_dir, plan.loop);
  }
  refuse_token_count(context);
}

Experiment::Experiment(const StageContext& context, const trainer::LoopSettings& loop,
                       bool restarted)
    : context_(context),
      folder_(context.folder("exp_dir")),
      home_(context, loop),
      restarted_(restarted),
      lock_(lock_folder(folder_, restarted, kOtherTag)),
      home_lock_(lock_home(home_, wants_fresh_start(context), restarted)) {
  home_.refuse(wants_fresh_start(context));  // again: nobody can come between any more
  if (!wants_fresh_start(context)) refuse_changed_config(context, folder_, loop);
  heart_ = std::thread([this] { beat(); });
}

bool Experiment::starts_over() const { return !restarted_ && wants_fresh_start(context_); }

void Experiment::clear_way() const {
  if (!starts_over() && !home_.has_only_weights()) return;
  home_.set_aside();
  set_path_aside(folder_ / "metrics.jsonl");
  trainer::LogFolders::forget(folder_);  // the loggers' files stay as they are
}

Experiment::~Experiment() { unlock(); }

void Experiment::unlock() noexcept {
  {
    std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  if (heart_.joinable()) heart_.join();
  home_lock_.reset();
  lock_.reset();
}

void Experiment::beat() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, std::chrono::seconds(5), [this] { return over_; })) try {
      lock_->beat();
      if (home_lock_) home_lock_->beat();
    } catch (const Error& error) {
      log::error("{}", error.what());
      std::_Exit(static_cast<int>(ExitCode::kIo));  // whatever we write now is another run's
    }
}

void Experiment::note_config() const {
  const std::string text = config::to_yaml(keep_tokens(context_.training, folder_));
  const fs::path path = config_path(folder_);
  if (fs::exists(path)) {
    if (read_file(path) == text) return;
    for (int number = 1;; ++number) {
      const fs::path old = fmt::format("{}.{}", path.string(), number);
      if (fs::exists(old)) continue;
      fs::copy_file(path, old);
      break;
    }
  }
  write_file_atomic(path, text);
}

void Experiment::begin() const {
  home_.claim();
  note_config();
}

}  // namespace tutti::systems
