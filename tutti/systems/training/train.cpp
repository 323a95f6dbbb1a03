#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>

#include "tutti/config/gpu_count.h"
#include "tutti/config/recipe_defaults.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/threads.h"
#include "tutti/data/batching/settings.h"
#include "tutti/data/validate.h"
#include "tutti/launch/agent.h"
#include "tutti/parallel/folder/folder_lock.h"
#include "tutti/systems/corpus.h"
#include "tutti/systems/fingerprints.h"
#include "tutti/systems/models/init_param.h"
#include "tutti/systems/preprocess.h"
#include "tutti/systems/stages.h"
#include "tutti/systems/training/experiment.h"
#include "tutti/systems/training/planned_source.h"
#include "tutti/systems/training/spelling.h"
#include "tutti/systems/training/training_model.h"
#include "tutti/trainer/cpu/processor.h"
#include "tutti/trainer/device_feed.h"
#include "tutti/trainer/from_config.h"
#include "tutti/trainer/preemption.h"
#include "tutti/trainer/world.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

// How long ranks may take to stop and write a checkpoint before our agent kills them. A scheduler
// has its own, shorter patience; a person presses Ctrl-C twice.
constexpr launch::Timeout kStopGrace{600};

struct Sources {
  std::unique_ptr<trainer::DataSource> train;
  std::unique_ptr<trainer::DataSource> valid;
  std::shared_ptr<const data::Dataset> train_data;
};

// As validate_dataset says it, for who left that stage out. A model of the user's may want no text.
void warn_of_empty_texts(std::string_view split, const data::Dataset& dataset, bool users_model) {
  const data::Finding found = data::empty_texts(dataset);
  if (found.count == 0 || (users_model && static_cast<std::size_t>(found.count) == dataset.size()))
    return;
  log::warning("{}: {}", split, data::to_text("empty_text", found));
}

Sources open_sources(const StageContext& context, const launch::RankContext& rank,
                     const trainer::LoopSettings& loop, int sample_rate,
                     const trainer::TrainableModel& model) {
  const std::uint64_t seed = loop.seed;
  config::Problems problems;
  auto settings = data::parse_dataloader(
      context.training["dataloader"],
      data::RankCount{rank.num_nodes, rank.world_size / rank.num_nodes}, problems);
  problems.throw_if_any();
  if (rank.max_nodes > 0 && settings.train.plan.sharding)
    throw ConfigError(
        "dataloader.train.total_shards: shards belong to a fixed number of ranks, but tutti launch "
        "--nnodes MIN:MAX may go on with fewer",
        "remove total_shards and dist_world_size, or start it with --nnodes MAX");
  const bool has_features = context.training["model"]["input_size"].value_or(0) > 0;
  Sources out;
  const auto open = [&](const char* split, data::ModeSettings mode) {
    mode.plan.seed = seed;
    mode.plan.world = rank.world_size;
    mode.loader.allocate = trainer::host_allocator(at::Device(loop.device));
    const auto dataset =
        open_corpus(context.training, split, context.folder("data_dir"), sample_rate);
    const bool training = std::string_view(split) == "train";
    if (rank.rank == 0) warn_of_empty_texts(split, *dataset, is_users_model(context.training));
    if (training) out.train_data = dataset;
    return make_planned_source(
        {.dataset = dataset,
         .plan = std::make_shared<data::BatchPlan>(mode.plan, dataset),
         .prepare = refuse_short(make_prepare(context.training, training, seed), model),
         .loader = mode.loader,
         .rank = rank.rank,
         .sample_rate = has_features ? data::kFeatureFrameRate : sample_rate});
  };
  out.train = open("train", settings.train);
  out.valid = open("valid", settings.valid);
  return out;
}

// All cores, shared with the other ranks of this machine. Loader threads mostly wait for files.
void use_all_cores(const launch::RankContext& rank) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  at::set_num_threads(std::max(1, usable_cpus() / std::max(1, rank.local_world_size)));
}

// What a config leaves to the recipe defaults and people who come from torch do not expect.
void tell_quiet_choices(const config::Node& training) {
  const config::Node schedule = training["scheduler"];
  if (config::is_recipe_default(schedule) && training["optimizers"].is_null())
    log::info("default scheduler: WarmupLR with {} steps of warm-up (scheduler: null for none)",
              schedule["warmup_steps"].raw());
  const config::Node limit = training["trainer"]["gradient_clip_val"];
  if (config::is_recipe_default(limit))
    log::info("default clipping: gradients at {} (trainer.gradient_clip_val: 0 for none)",
              limit.raw());
}

// The first batches: data that cannot be read, or texts that are none of the task, must not cost an earlier run.
void try_data(const Sources& sources) {
  for (const auto& source : {sources.train.get(), sources.valid.get()}) source->open({})->next();
}

// Whether the tokens are those of somebody else's model.
bool begins_elsewhere(const config::Node& training) {
  const config::Node begin = training["init_param"];
  return !is_users_model(training) && !begin.is_null() && (begin.is_scalar() || begin.size() > 0);
}

// What rank 0 does alone; the others wait for it, or hear why it failed.
template <class Function>
void on_rank_zero(trainer::Control& control, Function&& work) {
  try {
    if (control.rank() == 0) work();
  } catch (const std::exception& error) {
    control.fail(error.what());
    throw;
  }
  control.all_gather("experiment folder", "");
}

int train_rank(const StageContext& context, const launch::RankContext& rank) {
  const fs::path exp_dir = context.folder("exp_dir");
  const std::string device =
      rank.device_index >= 0 ? fmt::format("cuda:{}", rank.device_index) : "cpu";
  if (device == "cpu") {
    use_all_cores(rank);
    trainer::keep_freed_memory();
  }
  // Without loggers: their files belong to nobody yet.
  const trainer::TrainingPlan outline = trainer::plan_training(
      context.training,
      {.exp_dir = exp_dir, .device = device, .rank = -1, .catalogue = context.catalogue.get()});
  const int requeue_signal =
      outline.loop.requeue_signal ? trainer::signal_number(*outline.loop.requeue_signal) : 0;
  std::unique_ptr<Experiment> experiment;
  trainer::StopSignals signals(requeue_signal);
  signals.while_starting([&](int signal) {
    log::info("stopped by {} before the first step", trainer::signal_name(signal));
    if (rank.rank == 0 && signal != SIGINT)
      trainer::requeue_if_wanted(signal, requeue_signal, CommandRunner::system());
    parallel::FolderLock::forget(exp_dir);
    parallel::FolderLock::forget(outline.loop.checkpoint_folder);
    std::_Exit(
        static_cast<int>(signal == SIGINT ? ExitCode::kInterrupted : ExitCode::kStoppedResumable));
  });
  trainer::WorldOptions meeting = outline.world_options(device);
  meeting.run_folder = exp_dir;
  meeting.must_agree = {{"config", config::to_json(context.training).dump()}};
  trainer::World world = trainer::join_world(rank, meeting);
  const bool restarted = std::max(rank.restart_count, restart_count()) > 0;
  on_rank_zero(*world.control, [&] {
    if (outline.loop.fast_dev_run.batches > 0) return;  // it leaves nothing in the folder
    experiment = std::make_unique<Experiment>(context, outline.loop, restarted);
  });
  if (rank.rank == 0) tell_quiet_choices(context.training);
  // Equal weights on all ranks; the loop makes dropout differ.
  torch::manual_seed(outline.loop.seed);
  const auto model = make_training_model(context.training);
  const Beginning begun = start_from(context.training, *model);
  if (rank.rank == 0 && !begun.table.empty()) log::info("{}", begun.table);
  if (rank.rank == 0 && !begun.warning.empty()) log::warning("{}", begun.warning);
  Sources sources =
      open_sources(context, rank, outline.loop, sample_rate_of(context.training), *model);
  on_rank_zero(*world.control, [&] {
    if (begins_elsewhere(context.training)) check_spelling(context.training, *sources.train_data);
    if (experiment && experiment->starts_over()) try_data(sources);
    if (experiment) experiment->clear_way();
  });
  trainer::TrainingPlan plan =
      trainer::plan_training(context.training, {.exp_dir = exp_dir,
                                                .device = device,
                                                .rank = rank.rank,
                                                .catalogue = context.catalogue.get()});
  const std::string& from = plan.loop.resume;
  // An earlier run was moved away; a job that comes back has gone back to the best already.
  if (from == "never" || (from == "best" && restarted)) plan.loop.resume = "auto";
  const auto strategy = plan.make_strategy(world);
  trainer::FitInputs inputs{.model = *model,
                            .train = *sources.train,
                            .valid = sources.valid.get(),
                            .strategy = *strategy,
                            .control = *world.control,
                            .settings = plan.loop,
                            .optimizers = plan.optimizers,
                            .criteria = plan.criteria,
                            .callbacks = plan.callback_pointers(),
                            .loggers = plan.logger_pointers(),
                            .signals = &signals,
                            .begins =
                                [&] {
                                  if (experiment) experiment->begin();
                                },
                            .users_model = is_users_model(context.training)
                                               ? context.training["model"]["_target_"].raw()
                                               : ""};
  const trainer::FitResult result = trainer::fit(inputs);
  world.control->finish();
  return static_cast<int>(
      trainer::conclude(result, rank.rank, CommandRunner::system(), requeue_signal));
}

launch::LaunchRequest launch_request(const config::Node& training) {
  config::Problems problems;
  const auto trainer = trainer::trainer_schema().parse(training["trainer"], problems);
  problems.throw_if_any();
  launch::LaunchRequest request;
  request.accelerator = trainer.accelerator == "cuda" ? "gpu" : trainer.accelerator;
  request.num_gpus = request.accelerator == "cpu" ? 0 : config::count_visible_gpus();
  request.devices = trainer.devices.number();
  request.device_ids = trainer.devices.ids;
  request.num_nodes = trainer.num_nodes;
  return request;
}

// The agent's exit code. A signal that ended it, or a rank, before the rank's program could hear it
// has stopped a training that is as it was.
int code_of_ranks(const config::Node& training, int code) {
  const int signal = code - 128;
  if (signal != SIGTERM && signal != SIGHUP && signal != SIGUSR1 && signal != SIGUSR2) return code;
  config::Problems problems;
  const auto wanted = trainer::trainer_schema().parse(training["trainer"], problems).requeue_signal;
  log::info("stopped by {} before the first step", trainer::signal_name(signal));
  trainer::requeue_if_wanted(signal, wanted ? trainer::signal_number(*wanted) : 0,
                             CommandRunner::system());
  return static_cast<int>(ExitCode::kStoppedResumable);
}

}  // namespace

void refuse_training(const StageContext& context) {
  refuse_start(context);
  // More ranks than GPUs: not after the hours of the stages in front. One that has been finished may
  // be up to date, and then needs none.
  if (!fs::exists(context.folder("exp_dir") / ".stages" / "train.json"))
    launch::detect(launch::current_environment(), launch_request(context.training));
}

void train(const StageContext& context) {
  const fs::path exp_dir = context.folder("exp_dir");
  make_folders(exp_dir);
  const config::Node model = context.training["model"];
  const bool uses_statistics =
      model["normalize"].value_or<std::string>("") == "global_mvn" &&
      model["normalize_conf"]["stats_file"].value_or<std::string>("").starts_with(
          context.folder("stats_dir").string());
  if (const std::string changes = uses_statistics ? other_features(context) : ""; !changes.empty())
    throw ConfigError(fmt::format("the statistics in {} are of other features ({})",
                                  context.folder("stats_dir").string(), changes),
                      "run the collect_stats stage first");
  if (const std::string changes = other_statistics(context); !changes.empty())
    log::warning("the statistics in {} are of something else ({}); run collect_stats first",
                 context.folder("stats_dir").string(), changes);
  const launch::Entry entry =
      launch::enter(launch_request(context.training), stage_command("train", context.request),
                    {.run_folder = exp_dir, .grace = kStopGrace});
  const int code = entry.rank ? train_rank(context, *entry.rank)
                              : code_of_ranks(context.training, entry.exit_code);
  if (code != 0) throw AlreadyReported(code);
}

}  // namespace tutti::systems
