// Decoding: one worker pool over all test sets, results and scp files in item order.
#include <fmt/format.h>

#include <algorithm>

#include "tutti/config/merge.h"
#include "tutti/config/plugin.h"
#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/rounding.h"
#include "tutti/core/text.h"
#include "tutti/core/units.h"
#include "tutti/parallel/folder/run_folder.h"
#include "tutti/parallel/parallel.h"
#include "tutti/parallel/runner.h"
#include "tutti/systems/corpus.h"
#include "tutti/systems/field_writer.h"
#include "tutti/systems/fingerprints.h"
#include "tutti/systems/inference/batches_ahead.h"
#include "tutti/systems/item_model.h"
#include "tutti/systems/models/model_source.h"
#include "tutti/systems/pack.h"
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
  return std::make_shared<TestSets>(TestSets{open_parts(inference, "test", data_dir, sample_rate)});
}

class DecodeProvider : public parallel::EnvironmentProvider {
 public:
  using EnvironmentProvider::EnvironmentProvider;
  void build_env(parallel::Env& env) const override {
    std::shared_ptr<ItemModel> model = load_item_model(config());
    const auto sets = open_test_sets(config(), params().at("data_dir"), model->sample_rate());
    const auto read = [sets, model](std::uint64_t index) {
      data::Sample sample = sets->read(index);
      model->prepare(sample);
      return sample;
    };
    env.put("batches", std::make_shared<BatchesAhead>(read, model));
    env.put("model", std::move(model));
  }
};
TUTTI_REGISTER_PROVIDER(DecodeProvider);

class DecodeRunner : public parallel::BaseRunner {
 public:
  using BaseRunner::BaseRunner;

  Json forward(std::uint64_t index, const parallel::Env& env) const override {
    return forward_batch(std::span(&index, 1), env)[0];
  }

  // The next batch is read, and on a GPU begun, while this one is decoded.
  bool reads_ahead() const override { return true; }
  void expect(std::span<const std::uint64_t> indices, const parallel::Env& env) const override {
    env.get<BatchesAhead>("batches").expect(indices);
  }

  std::vector<Json> forward_batch(std::span<const std::uint64_t> indices,
                                  const parallel::Env& env) const override {
    auto [order, samples, begun] = env.get<BatchesAhead>("batches").take(indices);
    std::vector<Json> results = env.get<ItemModel>("model").run(samples, std::move(begun));
    for (std::size_t i = 0; i < samples.size(); ++i)
      results[i]["seconds"] = round_time(static_cast<double>(samples[i].speech.size()) /
                                         std::max(1, samples[i].sample_rate));
    return results;
  }
};
TUTTI_REGISTER_RUNNER(DecodeRunner);

// `provider: {_target_: NAME}`: a class a plugin registered; ESPnet3's names mean ours.
std::string custom_name(const config::Node& node) {
  if (!node.is_map() || !node["_target_"].is_scalar()) return {};
  const std::string name = node["_target_"].raw();
  const bool is_ours = name.find('.') != std::string::npos || name == "inference_provider" ||
                       name == "inference_runner" || name == "InferenceProvider" ||
                       name == "InferenceRunner";
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
  for (const auto& plugin : inference["plugins"].elements())
    settings.plugins.push_back(config::plugin_path(plugin));
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
  const std::vector<Json> results = read_results(folder);
  write_fields(fields, results);
  write_recognition_files(folder, fields.id_key, results);
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
            join(ids, " "), shell_quote(folder.string()));
}

// Of the items that `now` has.
double audio_seconds(const std::vector<Json>& results, const std::vector<bool>& now) {
  double seconds = 0;
  for (std::size_t i = 0; i < results.size(); ++i)
    if (now[i] && results[i].is_object()) seconds += results[i].value("seconds", 0.0);
  return seconds;
}

// What decides the results of one test set. A provider or runner of a plugin may read anything in
// the config but who runs it.
Fingerprint set_inputs(const config::Node& inference, const TestSets& sets, std::size_t set,
                       const std::string& data_dir) {
  Fingerprint inputs;
  const std::string provider = custom_name(inference["provider"]);
  const std::string runner = custom_name(inference["runner"]);
  if (provider.empty() && runner.empty()) {
    inputs = item_model_inputs(inference);
  } else {
    Json config = config::to_json(inference);
    for (const char* key : {"parallel", "recipe_dir", "exp_dir", "data_dir", "inference_dir"})
      config.erase(key);
    inputs.add("provider", provider).add("runner", runner);
    inputs.add("config", config, places_of(inference));
  }
  inputs.add("data", data_inputs(inference, "test", data_dir).at(set));
  return inputs.add("first", sets.begin_of(set));  // what an item's number in the journal means
}

bool is_decoded(const fs::path& folder, const Fingerprint& inputs) {
  const Json manifest = parallel::read_manifest(folder);
  return manifest.is_object() && manifest.value("state", "") == "done" &&
         manifest.value("failed", 0) == 0 &&
         Fingerprint(manifest.value("fingerprint", Json())) == inputs;
}

// The keys of the recogniser behind these results, without files and places: a pack keeps them.
void write_decoding(const config::Node& inference, const fs::path& inference_dir) {
  Json model = config::to_json(inference["model"]);
  if (!model.is_object() || is_torchscript(inference["model"])) return;
  for (const char* key : {"_target_", "asr_train_config", "asr_model_file", "device"})
    model.erase(key);
  if (!inference["batch_size"].is_null()) model["batch_size"] = batch_size_of(inference);
  write_file_atomic(inference_dir / kPackedDecoding, config::to_yaml(config::from_json(model)));
}

// Workers of an asynchronous run load the model when nobody looks: that it can be loaded is tried here, on the CPU,
// before results that are there are set aside. (A run that we wait for puts them back when its workers cannot.)
void try_model(const config::Node& inference) {
  if (!custom_name(inference["provider"]).empty()) return;
  const config::Node model = inference["model"];
  load_item_model(
      is_torchscript(model)
          ? inference
          : config::with_key(inference, "model", config::with_key(model, "device", "cpu")));
}

// Where nobody says how many utterances go together, a small set is still enough for several GPUs.
// By the data alone: results must not depend on how many workers there are.
std::size_t batch_for(const config::Node& inference, std::size_t num_utterances) {
  if (!custom_name(inference["runner"]).empty())
    return inference["batch_size"].value_or<std::size_t>(1);
  const std::size_t most = batch_size_of(inference);
  if (!inference["batch_size"].is_null() || !inference["model"]["batch_size"].is_null())
    return most;
  return std::clamp<std::size_t>(num_utterances / 8, 1, most);
}

struct SetReport {
  std::string name;
  fs::path folder;
  std::size_t num_failed = 0;
};

// `now`: which of them this run has done; the others were there before and took none of its time.
void log_done(const SetReport& set, const std::vector<Json>& results, const std::vector<bool>& now,
              double seconds) {
  const double audio = audio_seconds(results, now);
  std::size_t num_now = 0;  // what failed is told below
  for (std::size_t i = 0; i < results.size(); ++i) num_now += now[i] && !results[i].is_null();
  const auto num_before = static_cast<std::size_t>(std::count(now.begin(), now.end(), false));
  const std::string before = num_before > 0 ? fmt::format("; {} {} there before", num_before,
                                                          num_before == 1 ? "was" : "were")
                                            : "";
  if (audio > 0)
    log::info("{}: {} utterance{}, {} of audio in {} (real-time factor {:.4f}){}", set.name,
              num_now, num_now == 1 ? "" : "s", format_duration(audio), format_duration(seconds),
              seconds / audio, before);
  else  // a plugin's runner need not hear anything
    log::info("{}: {} items in {}{}", set.name, num_now, format_duration(seconds), before);
  if (set.num_failed > 0)
    log::warning("{}: {} of {} utterances could not be decoded; the reasons are in {}", set.name,
                 set.num_failed, results.size(), (set.folder / "failed.jsonl").string());
}

}  // namespace

void infer(const StageContext& context) {
  const config::Node& inference = context.inference;
  // Here and not by the workers: all of them decode with what is there now, also while training runs.
  for (const char* key : {"asr_model_file", "s2t_model_file"})
    if (const config::Node file = inference["model"][key]; file.is_scalar()) {
      renew_average(file.raw());
      if (const fs::path found = find_weights(file.raw());
          found.stem() != fs::path(file.raw()).stem())
        log::info("{} is not there; the average of as many as were kept is: {}",
                  fs::path(file.raw()).filename().string(), found.string());
    }
  const fs::path inference_dir = context.folder("inference_dir");
  const std::string data_dir = context.folder("data_dir").string();
  const auto sets = open_test_sets(inference, data_dir, 0);
  const parallel::ParallelScope scope(worker_settings(inference));
  const bool async = parallel::current_parallel().async;
  std::optional<parallel::ClientScope> client;  // its workers serve all sets
  // Its logs and its key lie with the results: what a kill leaves is not scattered over $TMPDIR.
  if (!async)
    client.emplace(std::vector<std::string>{},
                   parallel::ClientOptions{.run_folder = inference_dir});
  const auto provider = make_provider(inference, {{"data_dir", data_dir}});
  const bool leaves = async && context.is_last;
  bool tried = false;
  for (std::size_t s = 0; s < sets->sets.size(); ++s) {
    const auto& [name, dataset] = sets->sets[s];
    if (dataset->size() == 0)
      log::warning("{}: there is nothing to decode: its list is empty", name);
    const auto runner = make_runner(inference, *provider);
    parallel::RunOptions options;
    options.batch_size = batch_for(inference, dataset->size());
    options.output_dir = inference_dir / name;
    options.fingerprint = set_inputs(inference, *sets, s, data_dir);
    options.redo_if_changed = true;
    options.start_over = context.request.force;
    options.progress = !context.request.quiet;
    options.handle_signals = true;
    options.finisher = "write_inference_fields";
    options.finisher_params = field_params(inference);
    if (!inference["on_bad"].is_null()) options.on_error = inference["on_bad"].as<std::string>();
    const std::uint64_t begin = sets->begin_of(s);
    options.item_of = [dataset = dataset, begin](std::uint64_t index) -> Json {
      return dataset->uid(index - begin);
    };
    // Batches of like lengths are padded least, and nobody waits for a long utterance at the end.
    if (options.batch_size > 1)
      options.cost = [dataset = dataset, begin](std::uint64_t index) {
        return dataset->length_hint(index - begin);
      };
    const bool is_done = !options.start_over && parallel::current_parallel().resume &&
                         is_decoded(options.output_dir, options.fingerprint);
    const auto items = parallel::range(begin, begin + dataset->size());
    if (leaves && !is_done) {
      if (!tried && fs::exists(options.output_dir / "results.jsonl")) try_model(inference);
      tried = true;
      const auto jobs = runner->submit(items, options);
      if (jobs.empty()) continue;
      log_submitted(name, options.output_dir, jobs);
      if (context.left_unfinished != nullptr) *context.left_unfinished = true;
      continue;
    }
    std::vector<bool> now(dataset->size());
    options.on_outcome = [&now, begin](const parallel::Outcome& outcome) {
      now[outcome.index - begin] = true;
    };
    const double start = Clock::system().unix_seconds();
    const auto results =
        (*runner)(items, options);  // also when done: other fields may be asked for
    const SetReport report{
        name, options.output_dir,
        static_cast<std::size_t>(std::count(results.begin(), results.end(), Json()))};
    if (is_done)
      log::info("{}: up to date, skipped (--force to redo)", name);
    else
      log_done(report, results, now, Clock::system().unix_seconds() - start);
    if (report.num_failed > 0 && context.items_failed != nullptr) *context.items_failed = true;
  }
  write_decoding(inference, inference_dir);
}

}  // namespace tutti::systems
