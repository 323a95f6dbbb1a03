// Decoding: one worker pool over all test sets, results and scp files in item order.
#include <fmt/format.h>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/core/units.h"
#include "tutti/data/io/npy.h"
#include "tutti/parallel/parallel.h"
#include "tutti/parallel/runner.h"
#include "tutti/systems/corpus.h"
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

  // ---- on the driver, in item order
  void open_writers(const fs::path& output_dir) override {
    output_dir_ = output_dir;
    scp_.clear();
  }
  void write_record(std::uint64_t, const Json& result) override {
    const std::string id = result.at("utt_id");
    const config::Node wanted = provider().config()["output_keys"];
    const auto fields = wanted.is_list() ? wanted.as<std::vector<std::string>>()
                                         : item_model_outputs(provider().config()["model"]);
    for (const auto& field : fields) {
      const auto value = result.find(field);
      if (value == result.end())
        throw ConfigError(fmt::format("output_keys: the model gives no '{}'", field),
                          fmt::format("it gives {}", join(keys_of(result), ", ")));
      scp_[field] += id + " " + scp_value(field, id, *value) + "\n";
    }
    audio_seconds_ += result.value("seconds", 0.0);
  }
  void merge(const fs::path& output_dir) override {
    for (const auto& [field, text] : scp_) write_file_atomic(output_dir / (field + ".scp"), text);
  }
  double audio_seconds() const { return audio_seconds_; }

 private:
  static std::vector<std::string> keys_of(const Json& result) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : result.items()) keys.push_back(key);
    return keys;
  }
  // Text and numbers stand in the line; lists and maps get a file of their own, as
  // output_artifacts says (npy) or as JSON.
  std::string scp_value(const std::string& field, const std::string& id, const Json& value) const {
    if (value.is_string()) return one_line(value);
    if (!value.is_structured()) return value.dump();
    const config::Node type = provider().config()["output_artifacts"][field]["type"];
    const bool as_npy = type.is_scalar() && type.raw() == "npy";
    const fs::path file = output_dir_ / field / (safe_name(id) + (as_npy ? ".npy" : ".json"));
    make_folders(file.parent_path());
    if (as_npy)
      data::write_npy(file, to_array(value));
    else
      write_file_atomic(file, value.dump() + "\n");
    return file.string();
  }
  // Rectangular nested lists of numbers.
  static data::Array to_array(const Json& value) {
    std::vector<std::int64_t> shape;
    for (const Json* level = &value; level->is_array(); level = &level->front()) {
      shape.push_back(static_cast<std::int64_t>(level->size()));
      if (level->empty()) break;
    }
    data::Array array = data::Array::make(data::DType::kFloat32, shape);
    float* out = array.data<float>();
    const std::function<void(const Json&)> copy = [&](const Json& part) {
      if (part.is_array())
        for (const Json& inner : part) copy(inner);
      else
        *out++ = part.get<float>();
    };
    copy(value);
    return array;
  }
  static std::string safe_name(std::string id) {
    for (char& c : id)
      if (c == '/') c = '_';
    return id;
  }
  // A line break inside a hypothesis would break the file for every reader.
  static std::string one_line(std::string text) {
    for (char& c : text)
      if (c == '\n' || c == '\r') c = ' ';
    return text;
  }
  fs::path output_dir_;
  std::map<std::string, std::string> scp_;
  double audio_seconds_ = 0;
};
TUTTI_REGISTER_RUNNER(DecodeRunner);

}  // namespace

void infer(const StageContext& context) {
  const fs::path inference_dir = context.folder("inference_dir");
  const std::string data_dir = context.folder("data_dir").string();
  const auto batch_size = context.inference["batch_size"].value_or<std::uint64_t>(1);
  const auto sets = open_test_sets(context.inference, data_dir, 0);
  const auto scope = parallel::set_parallel(context.inference["parallel"]);
  const auto client = parallel::get_client<>();
  const DecodeProvider provider(context.inference,
                                {{"data_dir", data_dir}, {"batch_size", batch_size}});
  for (std::size_t s = 0; s < sets->sets.size(); ++s) {
    const auto& [name, dataset] = sets->sets[s];
    DecodeRunner runner(provider);
    parallel::RunOptions options;
    options.batch_size = batch_size;
    options.output_dir = inference_dir / name;
    options.progress = true;
    options.handle_signals = true;
    const std::uint64_t begin = sets->begin_of(s);
    options.item_of = [dataset = dataset, begin](std::uint64_t index) -> Json {
      return dataset->uid(index - begin);
    };
    const double start = Clock::system().unix_seconds();
    runner(parallel::range(begin, begin + dataset->size()), options);
    const double seconds = Clock::system().unix_seconds() - start;
    log::info("{}: {} utterances, {} of audio in {} (real-time factor {:.4f})", name,
              dataset->size(), format_duration(runner.audio_seconds()), format_duration(seconds),
              seconds / std::max(1e-9, runner.audio_seconds()));
  }
}

}  // namespace tutti::systems
