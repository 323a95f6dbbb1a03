#include "tutti/data/batching/settings.h"

#include <fmt/format.h>

#include "tutti/config/recipe_defaults.h"

namespace tutti::data {
namespace {

using config::Node;
using config::Problems;
using config::Schema;

// Keys of a mode that mean the same in every spelling.
struct CommonKeys {
  std::optional<int> total_shards;
  std::optional<int> dist_world_size;
  std::string batch_distribution = "per_gpu";
  std::string on_bad = "stop";
  std::string plan_cache;
};

// A pointer to a member of CommonKeys as one of the struct that inherits it.
template <class T, class F>
F T::*own(F CommonKeys::*member) {
  return member;
}

template <class T>
void add_common(Schema<T>& s) {
  s.field("total_shards", own<T>(&CommonKeys::total_shards),
          "parts the data is cut into; a multiple of dist_world_size", {.min = 1});
  s.field("dist_world_size", own<T>(&CommonKeys::dist_world_size),
          "ranks that share the data: num_nodes x num_device", {.min = 1});
  s.field("batch_distribution", own<T>(&CommonKeys::batch_distribution),
          "per_gpu: batch limits are per rank; global: each batch is dealt out over the ranks",
          {.one_of = {"per_gpu", "global"}});
  s.field("on_bad", own<T>(&CommonKeys::on_bad), "what an unreadable utterance does",
          {.one_of = {"stop", "skip"}});
  s.field("plan_cache", own<T>(&CommonKeys::plan_cache),
          "folder in which batch plans are kept; empty: none");
}

// `iter_factory:`, and a mode with `batches:` of its own.
struct FactoryKeys : CommonKeys {
  Node iter_factory;
  Node batches;
  Node collate_fn;
  bool shuffle = false;
  bool shuffle_within_batch = false;
  std::optional<std::int64_t> num_iters_per_epoch;
  std::int64_t seed = 0;
  int num_workers = 1;
  int prefetch = 0;
  bool pin_memory = false;
};

template <class T>
void add_iteration(Schema<T>& s) {
  s.field("shuffle", &T::shuffle, "shuffle the batches every epoch");
  s.field("shuffle_within_batch", &T::shuffle_within_batch,
          "shuffle utterances across batches too; lengths no longer match");
  s.field("num_iters_per_epoch", &T::num_iters_per_epoch,
          "steps per epoch, whatever the size of the data", {.min = 1});
  s.field("seed", &T::seed, "added to the run's seed", {.min = 0});
  s.field("num_workers", &T::num_workers, "reading threads; 0: none beside the training loop",
          {.min = 0, .max = 1024});
  s.field("prefetch", &T::prefetch, "batches read ahead; 0: two per worker", {.min = 0});
  s.field("pin_memory", &T::pin_memory, "page-locked buffers, for fast copies to a GPU");
  s.field("collate_fn", &T::collate_fn, "as dataloader.collate_fn, for this mode");
}

Schema<FactoryKeys> factory_schema() {
  Schema<FactoryKeys> s("iter_factory", "ESPnet's SequenceIterFactory.");
  add_iteration(s);
  s.field("batches", &FactoryKeys::batches, "the batch sampler", {.required = true});
  for (const char* key :
       {"total_shards", "dist_world_size", "batch_distribution", "on_bad", "plan_cache"})
    s.elsewhere(key, fmt::format("belongs beside iter_factory, not in it"));
  for (const char* key : {"batch_size", "batch_bins"})
    s.elsewhere(key, fmt::format("belongs to the batches: batches.{}", key));
  return s;
}

Schema<FactoryKeys> mode_schema() {
  Schema<FactoryKeys> s("dataloader.<mode>", "One mode: an iter_factory, or batches of its own.");
  add_common(s);
  add_iteration(s);
  s.field("iter_factory", &FactoryKeys::iter_factory,
          "ESPnet's spelling; null: batches or the plain keys");
  s.field("batches", &FactoryKeys::batches, "the batch sampler");
  s.elsewhere("multiple_iterator",
              "not supported; use total_shards and dist_world_size to cut the data");
  for (const char* key : {"batch_size", "batch_bins"})
    s.elsewhere(key, fmt::format("belongs to the batches: iter_factory.batches.{0}, or batches.{0} "
                                 "of a mode without a factory",
                                 key));
  return s;
}

// torch's DataLoader.
struct PlainKeys : CommonKeys {
  Node iter_factory;
  Node collate_fn;
  std::int64_t batch_size = 1;
  bool shuffle = false;
  bool drop_last = false;
  int num_workers = 0;
  std::optional<int> prefetch_factor;
  bool pin_memory = false;
  bool persistent_workers = false;
  double timeout = 0;
  std::int64_t seed = 0;
};

Schema<PlainKeys> plain_schema() {
  using P = PlainKeys;
  Schema<P> s("dataloader.<mode> (plain)", "The keys of torch's DataLoader.");
  add_common(s);
  s.field("iter_factory", &P::iter_factory, "null");
  s.field("collate_fn", &P::collate_fn, "as dataloader.collate_fn, for this mode");
  s.field("batch_size", &P::batch_size, "utterances per batch", {.min = 1});
  s.field("shuffle", &P::shuffle, "shuffle the utterances every epoch");
  s.field("drop_last", &P::drop_last, "leave out an unfilled last batch");
  s.field("num_workers", &P::num_workers, "reading threads; 0: none beside the training loop",
          {.min = 0, .max = 1024});
  s.field("prefetch_factor", &P::prefetch_factor, "batches read ahead per worker", {.min = 1});
  s.field("pin_memory", &P::pin_memory, "page-locked buffers, for fast copies to a GPU");
  s.field("persistent_workers", &P::persistent_workers,
          "accepted; threads cost nothing to start anew");
  s.field("timeout", &P::timeout, "accepted; a thread cannot be lost like a process",
          {.min = 0, .unit = "seconds"});
  s.field("seed", &P::seed, "added to the run's seed", {.min = 0});
  return s;
}

// False when the factory is one we cannot play.
bool check_factory(const Node& factory, Problems& problems) {
  const Node target = factory["_target_"];
  if (!target.is_scalar()) return true;
  const std::string& name = target.raw();
  for (const char* ok : {"SequenceIterFactory", "CategoryIterFactory"})
    if (name.ends_with(ok)) return true;
  problems.add(target, fmt::format("got '{}', expected SequenceIterFactory", name),
               name.ends_with("MultipleIterFactory")
                   ? "use total_shards and dist_world_size to cut the data"
                   : "use espnet2.iterators.sequence_iter_factory.SequenceIterFactory");
  return false;
}

void check_shards(const Node& mode, const CommonKeys& keys, const std::optional<RankCount>& ranks,
                  Problems& problems) {
  if (!keys.total_shards && !keys.dist_world_size) return;
  if (!keys.total_shards || !keys.dist_world_size) {
    const char* missing = keys.total_shards ? "dist_world_size" : "total_shards";
    problems.add(mode,
                 fmt::format("'{}' is set without '{}'",
                             keys.total_shards ? "total_shards" : "dist_world_size", missing),
                 fmt::format("add {}, or remove both", missing));
    return;
  }
  const int world = ranks ? ranks->num_nodes * ranks->num_device : *keys.dist_world_size;
  const std::string ranks_are = ranks ? fmt::format("num_nodes x num_device = {} x {} = {}",
                                                    ranks->num_nodes, ranks->num_device, world)
                                      : std::to_string(world);
  if (const auto mistake =
          find_sharding_mistake({*keys.total_shards, *keys.dist_world_size}, world, ranks_are))
    problems.add(mode[mistake->key], mistake->what, mistake->fix);
  if (keys.batch_distribution == "global" && *keys.total_shards > 1)
    problems.add(
        mode["batch_distribution"],
        "global deals each batch out over all ranks, total_shards gives ranks different data",
        "use per_gpu with shards");
}

void apply_common(const CommonKeys& keys, ModeSettings& out) {
  // One shard on one rank is no sharding.
  if (keys.total_shards && keys.dist_world_size && *keys.total_shards * *keys.dist_world_size > 1)
    out.plan.sharding = Sharding{*keys.total_shards, *keys.dist_world_size};
  out.plan.global_batches = keys.batch_distribution == "global";
  out.plan.cache_folder = keys.plan_cache;
  out.loader.on_bad = keys.on_bad == "skip" ? OnBad::kSkip : OnBad::kStop;
}

void apply_factory(const FactoryKeys& keys, ModeSettings& out, Problems& problems) {
  out.plan.batches = batch_schema().parse(keys.batches, problems);
  out.plan.shuffle = keys.shuffle;
  out.plan.shuffle_within_batch = keys.shuffle_within_batch;
  out.plan.num_iters_per_epoch = keys.num_iters_per_epoch;
  out.plan.seed = static_cast<std::uint64_t>(keys.seed);
  out.loader.num_workers = keys.num_workers;
  out.loader.prefetch = keys.prefetch;
  out.pin_memory = keys.pin_memory;
  if (!keys.collate_fn.is_null())
    out.loader.collate = collate_schema().parse(keys.collate_fn, problems);
}

ModeSettings parse_mode(const Node& mode, const CollateSettings& collate,
                        const std::optional<RankCount>& ranks, Problems& problems) {
  ModeSettings out;
  out.loader.collate = collate;
  if (mode.is_null()) return out;
  if (!mode.is_map()) {
    problems.add(mode, "got " + mode.describe_value() + ", expected a map");
    return out;
  }
  Node factory = mode["iter_factory"];
  // What a recipe file does not say gives way to what it says.
  if (!mode["batches"].is_null() && config::is_recipe_default(factory)) factory = Node();
  if (factory.is_null() && mode["batches"].is_null()) {
    const PlainKeys keys = plain_schema().parse(mode, problems);
    check_shards(mode, keys, ranks, problems);
    apply_common(keys, out);
    out.plan.batches = {
        .type = "sequential", .batch_size = keys.batch_size, .drop_last = keys.drop_last};
    out.plan.shuffle = out.plan.shuffle_within_batch = keys.shuffle;
    out.plan.seed = static_cast<std::uint64_t>(keys.seed);
    out.loader.num_workers = keys.num_workers;
    out.loader.prefetch = keys.prefetch_factor.value_or(0) * std::max(keys.num_workers, 1);
    out.pin_memory = keys.pin_memory;
    if (!keys.collate_fn.is_null())
      out.loader.collate = collate_schema().parse(keys.collate_fn, problems);
    return out;
  }
  FactoryKeys keys = mode_schema().parse(mode, problems);
  check_shards(mode, keys, ranks, problems);
  apply_common(keys, out);
  if (factory.is_null()) {
    apply_factory(keys, out, problems);
  } else if (check_factory(factory, problems)) {
    if (!mode["batches"].is_null())
      problems.add(mode["batches"], "given beside iter_factory",
                   "put it into iter_factory, or remove iter_factory");
    const FactoryKeys inner = factory_schema().parse(factory, problems);
    if (!inner.batches.is_null()) apply_factory(inner, out, problems);
  }
  return out;
}

}  // namespace

DataloaderSettings parse_dataloader(const Node& dataloader, const std::optional<RankCount>& ranks,
                                    Problems& problems) {
  DataloaderSettings out;
  if (dataloader.is_null()) return out;
  if (!dataloader.is_map()) {
    problems.add(dataloader,
                 "got " + dataloader.describe_value() + ", expected a map with train and valid");
    return out;
  }
  config::check_unknown_keys(dataloader, {"collate_fn", "train", "valid"}, {}, problems);
  CollateSettings collate;
  if (!dataloader["collate_fn"].is_null())
    collate = collate_schema().parse(dataloader["collate_fn"], problems);
  out.train = parse_mode(dataloader["train"], collate, ranks, problems);
  out.valid = parse_mode(dataloader["valid"], collate, ranks, problems);
  return out;
}

void check_dataloader_block(const Node& dataloader, const std::optional<RankCount>& ranks,
                            Problems& problems) {
  parse_dataloader(dataloader, ranks, problems);
}

std::vector<config::SchemaInfo> dataloader_reference() {
  return {mode_schema().info(), factory_schema().info(), plain_schema().info(),
          batch_schema().info(), collate_schema().info()};
}

}  // namespace tutti::data
