// Shapes and feature statistics, one utterance an item, on the parallel layer.
#include <fmt/format.h>

#include <algorithm>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/data/batching/lengths.h"
#include "tutti/data/batching/settings.h"
#include "tutti/data/features/fbank.h"
#include "tutti/data/features/statistics.h"
#include "tutti/parallel/parallel.h"
#include "tutti/parallel/runner.h"
#include "tutti/systems/corpus.h"
#include "tutti/systems/fingerprints.h"
#include "tutti/systems/preprocess.h"
#include "tutti/systems/stages.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

data::FbankSettings frontend_of(const config::Node& training) {
  const config::Node name = training["model"]["frontend"];
  if (!name.is_null() && name.raw() != "default")
    throw ConfigError(fmt::format("{}: model.frontend: got '{}', expected default",
                                  name.mark().describe(), name.raw()));
  config::Problems problems;
  auto settings = data::fbank_schema().parse(training["model"]["frontend_conf"], problems);
  problems.throw_if_any();
  settings.fs = sample_rate_of(training);
  return settings;
}

// Features that were made elsewhere.
data::Array given_features(const data::Sample& sample) {
  data::Array feats = data::Array::make(
      data::DType::kFloat32,
      {static_cast<std::int64_t>(sample.speech.size()) / sample.feature_dim, sample.feature_dim});
  std::copy(sample.speech.begin(), sample.speech.end(), feats.data<float>());
  return feats;
}

// The config is the training file; params name the split.
class StatisticsProvider : public parallel::EnvironmentProvider {
 public:
  using EnvironmentProvider::EnvironmentProvider;
  void build_env(parallel::Env& env) const override {
    const auto frontend = frontend_of(config());
    env.put("dataset", std::make_shared<std::shared_ptr<const data::Dataset>>(
                           open_corpus(config(), params().at("split").get<std::string>(),
                                       params().at("data_dir").get<std::string>(), frontend.fs)));
    env.put("fbank", std::make_shared<data::Fbank>(frontend));
    env.put("prepare", std::make_shared<data::Prepare>(make_prepare(config(), false, 0)));
  }
};
TUTTI_REGISTER_PROVIDER(StatisticsProvider);

class StatisticsRunner : public parallel::BaseRunner {
 public:
  using BaseRunner::BaseRunner;
  Json forward(std::uint64_t index, const parallel::Env& env) const override {
    const auto& dataset = env.get<std::shared_ptr<const data::Dataset>>("dataset");
    data::Sample sample = dataset->read(index);
    try {
      env.get<data::Prepare>("prepare")(sample, 0);
      const data::Array feats = sample.feature_dim > 0
                                    ? given_features(sample)
                                    : env.get<data::Fbank>("fbank").compute(sample.speech);
      const auto size = static_cast<std::int64_t>(sample.speech.size());
      data::Statistics statistics;
      statistics.add(feats);
      return {{"uid", sample.uid},
              {"feats", feats.shape},
              {"speech", sample.feature_dim > 0 ? feats.shape : std::vector{size}},
              {"text", sample.tokens.size()},
              {"stats", statistics.to_json()}};
    } catch (const Error& error) {
      const std::string what = error.what();
      if (what.find(sample.uid) != std::string::npos) throw;
      throw DataError(sample.uid + ": " + what, "mend it, or set on_bad: skip");
    }
  }

  // On the driver, in item order.
  void write_record(std::uint64_t, const Json& result) override {
    const std::string uid = result.at("uid");
    feats_.add(uid, result.at("feats").get<std::vector<std::int64_t>>());
    speech_.add(uid, result.at("speech").get<std::vector<std::int64_t>>());
    text_.add(uid, {result.at("text").get<std::int64_t>()});
    auto part = data::Statistics::from_json(result.at("stats"), uid);
    if (statistics_.dim() == 0) statistics_ = data::Statistics(part.dim());
    statistics_.merge(part);
  }

  void write(const fs::path& folder) const {
    make_folders(folder);
    speech_.write(folder / "speech_shape");
    text_.write(folder / "text_shape");
    statistics_.write_npz(folder / "feats_stats.npz");
    write_file_atomic(folder / "stats_keys", "feats\n");
    feats_.write(folder / "feats_shape");
  }

 private:
  data::ShapeFileWriter feats_, speech_, text_;
  data::Statistics statistics_;
};
TUTTI_REGISTER_RUNNER(StatisticsRunner);

// dataloader.SPLIT.on_bad, as training reads it.
std::string on_bad(const config::Node& training, std::string_view split) {
  config::Problems problems;
  const auto settings = data::parse_dataloader(training["dataloader"], {}, problems);
  problems.throw_if_any();
  const auto& mode = split == "train" ? settings.train : settings.valid;
  return mode.loader.on_bad == data::OnBad::kSkip ? "skip" : "stop";
}

// The rule for bad utterances is training's, not that of the parallel block, which the advice would name.
std::vector<Json> run_items(StatisticsRunner& runner, std::size_t count,
                            const parallel::RunOptions& options, std::string_view split) {
  try {
    return runner(parallel::range(count), options);
  } catch (const TaskError& error) {
    const std::string what = error.what();
    if (!what.starts_with("item ")) throw;  // a worker that could not begin
    throw TaskError(what.substr(0, what.find("\n  fix: ")),
                    fmt::format("mend it and run the same command again, or leave it out: "
                                "dataloader.{}.on_bad=skip",
                                split));
  }
}

}  // namespace

void collect_stats(const StageContext& context) {
  const fs::path stats_dir = context.folder("stats_dir");
  const fs::path data_dir = context.folder("data_dir");
  const auto scope = parallel::set_parallel(context.training["parallel"]);
  for (const char* split : {"train", "valid"}) {
    const auto dataset =
        open_corpus(context.training, split, data_dir, frontend_of(context.training).fs);
    const StatisticsProvider provider(context.training,
                                      {{"split", split}, {"data_dir", data_dir.string()}});
    StatisticsRunner runner(provider);
    parallel::RunOptions options;
    options.output_dir = stats_dir / ".collect" / split;
    options.fingerprint = statistics_inputs(context, split);
    options.redo_if_changed = true;
    options.keep_old = false;  // quickly made again, and as large as the corpus
    options.start_over = context.request.force;
    options.on_error = on_bad(context.training, split);
    options.item_of = [&](std::uint64_t index) -> Json { return dataset->uid(index); };
    options.progress = !context.request.quiet;
    options.handle_signals = true;
    log::info("{}: {} utterances", split, dataset->size());
    const auto results = run_items(runner, dataset->size(), options, split);
    const auto bad = std::count(results.begin(), results.end(), Json());
    if (static_cast<std::size_t>(bad) == results.size())
      throw DataError(fmt::format("{}: not one utterance could be used", split),
                      "see " + (options.output_dir / "failed.jsonl").string());
    if (bad > 0)
      log::warning("{}: {} of {} utterances are left out; the reasons are in {}", split, bad,
                   results.size(), (options.output_dir / "failed.jsonl").string());
    runner.write(stats_dir / split);
  }
}

}  // namespace tutti::systems
