// Decoding: one worker pool over all test sets, results and scp files in item order.
#include <fmt/format.h>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/core/units.h"
#include "tutti/parallel/parallel.h"
#include "tutti/parallel/runner.h"
#include "tutti/systems/corpus.h"
#include "tutti/systems/field_writer.h"
#include "tutti/systems/item_model.h"
#include "tutti/systems/stages.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

// All test sets one after the other, so that the env is the same for every set and is built once.
struct TestSets {
  std::vector<data::NamedDataset> sets;

  std::uint64_t begin_of(std::size_t set) const {
    std::uint64_t begin = 0;
    for (std::size_t s = 0; s < set; ++s) begin += sets[s].dataset->size();
    return begin;
  }
  data::Sample read(std::uint64_t index) const {
    for (const auto& set : sets) {
      if (index < set.dataset->size()) return set.dataset->read(index);
      index -= set.dataset->size();
    }
    throw InternalError(fmt::format("item {} is past the last test set", index));
  }
};

std::shared_ptr<TestSets> open_test_sets(const config::Node& inference, const std::string& data_dir,
                                         int sample_rate) {
  auto out = std::make_shared<TestSets>();
  for (auto& part : corpus_manifests(inference, "test", data_dir))
    out->sets.push_back(
        {part.name, data::open_manifest(std::move(part.manifest), {.sample_rate = sample_rate})});
  return out;
}

class DecodeProvider : public parallel::EnvironmentProvider {
 public:
  using EnvironmentProvider::EnvironmentProvider;
  void build_env(parallel::Env& env) const override {
    std::shared_ptr<ItemModel> model = load_item_model(config(), params().at("batch_size"));
    env.put("dataset", open_test_sets(config(), params().at("data_dir"), model->sample_rate()));
    env.put("model", std::move(model));
  }
  std::vector<std::string> model_files() const override {
    return item_model_files(config()["model"]);
  }
};
TUTTI_REGISTER_PROVIDER(DecodeProvider);

class DecodeRunner : public parallel::BaseRunner {
 public:
  using BaseRunner::BaseRunner;

  Json forward(std::uint64_t index, const parallel::Env& env) const override {
    return forward_batch(std::span(&index, 1), env)[0];
  }

  std::vector<Json> forward_batch(std::span<const std::uint64_t> indices,
                                  const parallel::Env& env) const override {
    const auto& dataset = env.get<TestSets>("dataset");
    auto& model = env.get<ItemModel>("model");
    std::vector<data::Sample> samples;
    for (const std::uint64_t index : indices) samples.push_back(dataset.read(index));
    std::vector<Json> results = model.run(samples);
    for (std::size_t i = 0; i < samples.size(); ++i)
      results[i]["seconds"] =
          static_cast<double>(samples[i].speech.size()) / std::max(1, samples[i].sample_rate);
    return results;
  }
};
TUTTI_REGISTER_RUNNER(DecodeRunner);

// `provider: {_target_: NAME}`: a class a plugin registered; ESPnet3's names mean ours.
std::string custom_name(const config::Node& node) {
  if (!node.is_map() || !node["_target_"].is_scalar()) return {};
  const std::string name = node["_target_"].raw();
  const bool is_ours = name.find('.') != std::string::npos || name == "inference_provider" ||
                       name == "inference_runner";
  return is_ours ? "" : name;
}

std::unique_ptr<parallel::EnvironmentProvider> make_provider(const config::Node& inference,
                                                             const Json& params) {
  const std::string name = custom_name(inference["provider"]);
  if (name.empty()) return std::make_unique<DecodeProvider>(inference, params);
  return parallel::Registry::global().provider(name)(inference, params);
}

std::unique_ptr<parallel::BaseRunner> make_runner(const config::Node& inference,
                                                  const parallel::EnvironmentProvider& provider) {
  const std::string name = custom_name(inference["runner"]);
  if (name.empty()) return std::make_unique<DecodeRunner>(provider);
  return parallel::Registry::global().runner(name)(provider);
}

// What workers load besides what `parallel.plugins` names: the recipe's own libraries.
parallel::ParallelSettings worker_settings(const config::Node& inference) {
  config::Problems problems;
  auto settings = parallel::parse_parallel(inference["parallel"], problems);
  problems.throw_if_any();
  for (const auto& plugin : inference["plugins"].elements()) {
    const fs::path folder =
        plugin.mark().file ? fs::path(*plugin.mark().file).parent_path() : fs::path();
    const fs::path beside = fs::absolute(folder / plugin.raw());
    settings.plugins.push_back(fs::exists(beside) ? beside.string() : plugin.raw());
  }
  return settings;
}

// The results of a folder, in item order; null for items that failed.
std::vector<Json> read_results(const fs::path& folder) {
  std::vector<Json> results;
  const fs::path file = folder / "results.jsonl";
  for (const std::string& line : split(read_file(file), '\n'))
    if (!line.empty()) results.push_back(parse_json(line, file.string()).value("result", Json()));
  return results;
}

// Whoever writes results.jsonl writes the .scp files too.
void write_inference_fields(const fs::path& folder, const Json& params) {
  FieldWriterOptions fields;
  fields.output_dir = folder;
  fields.id_key = params.at("id_key");
  fields.fields = params.at("fields").get<std::vector<std::string>>();
  fields.artifacts = config::from_json(params.at("artifacts"));
  write_fields(fields, read_results(folder));
}
TUTTI_REGISTER_FINISHER(write_inference_fields);

Json field_params(const config::Node& inference) {
  FieldWriterOptions fields;
  if (inference["output_keys"].is_list())
    fields.fields = inference["output_keys"].as<std::vector<std::string>>();
  else if (custom_name(inference["runner"]).empty())
    fields.fields = item_model_outputs(inference["model"]);
  return {{"id_key", inference["idx_key"].value_or(fields.id_key)},
          {"fields", fields.fields},
          {"artifacts", config::to_json(inference["output_artifacts"])}};
}

void log_submitted(const std::string& name, const fs::path& folder,
                   const std::vector<parallel::JobStatus>& jobs) {
  std::vector<std::string> ids;
  for (const auto& job : jobs) ids.push_back(job.job_id);
  log::info("{}: submitted {} jobs ({}); follow with: tutti status {}", name, ids.size(),
            join(ids, " "), folder.string());
}

double audio_seconds(const std::vector<Json>& results) {
  double seconds = 0;
  for (const auto& result : results)
    if (result.is_object()) seconds += result.value("seconds", 0.0);
  return seconds;
}

}  // namespace

void infer(const StageContext& context) {
  const config::Node& inference = context.inference;
  const fs::path inference_dir = context.folder("inference_dir");
  const std::string data_dir = context.folder("data_dir").string();
  const auto batch_size = inference["batch_size"].value_or<std::uint64_t>(1);
  const auto sets = open_test_sets(inference, data_dir, 0);
  const parallel::ParallelScope scope(worker_settings(inference));
  const bool async = parallel::current_parallel().async;
  std::optional<parallel::ClientScope> client;  // its workers serve all sets
  if (!async) client.emplace(std::vector<std::string>{}, parallel::ClientOptions{});
  const auto provider =
      make_provider(inference, {{"data_dir", data_dir}, {"batch_size", batch_size}});
  const bool leaves = async && context.is_last;
  for (std::size_t s = 0; s < sets->sets.size(); ++s) {
    const auto& [name, dataset] = sets->sets[s];
    const auto runner = make_runner(inference, *provider);
    parallel::RunOptions options;
    options.batch_size = batch_size;
    options.output_dir = inference_dir / name;
    options.progress = true;
    options.handle_signals = true;
    options.finisher = "write_inference_fields";
    options.finisher_params = field_params(inference);
    const std::uint64_t begin = sets->begin_of(s);
    options.item_of = [dataset = dataset, begin](std::uint64_t index) -> Json {
      return dataset->uid(index - begin);
    };
    const auto items = parallel::range(begin, begin + dataset->size());
    if (leaves) {
      const auto jobs = runner->submit(items, options);
      if (jobs.empty()) continue;
      log_submitted(name, options.output_dir, jobs);
      if (context.left_unfinished != nullptr) *context.left_unfinished = true;
      continue;
    }
    const double start = Clock::system().unix_seconds();
    const auto results = (*runner)(items, options);
    const double seconds = Clock::system().unix_seconds() - start;
    const double audio = audio_seconds(results);
    log::info("{}: {} utterances, {} of audio in {} (real-time factor {:.4f})", name,
              dataset->size(), format_duration(audio), format_duration(seconds),
              seconds / std::max(1e-9, audio));
  }
}

}  // namespace tutti::systems
