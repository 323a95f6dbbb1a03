// Shapes and feature statistics, one utterance an item, on the parallel layer.
#include <fmt/format.h>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/random.h"
#include "tutti/data/batching/lengths.h"
#include "tutti/data/features/fbank.h"
#include "tutti/data/features/statistics.h"
#include "tutti/parallel/parallel.h"
#include "tutti/parallel/runner.h"
#include "tutti/systems/corpus.h"
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
    env.put("codec", std::make_shared<speech::TextCodec>(make_codec(config())));
  }
};
TUTTI_REGISTER_PROVIDER(StatisticsProvider);

class StatisticsRunner : public parallel::BaseRunner {
 public:
  using BaseRunner::BaseRunner;
  Json forward(std::uint64_t index, const parallel::Env& env) const override {
    const auto& dataset = env.get<std::shared_ptr<const data::Dataset>>("dataset");
    const auto& codec = env.get<speech::TextCodec>("codec");
    const data::Sample sample = dataset->read(index);
    const data::Array feats = env.get<data::Fbank>("fbank").compute(sample.speech);
    data::Statistics statistics;
    statistics.add(feats);
    return {{"uid", sample.uid},
            {"feats", feats.shape},
            {"speech", sample.speech.size()},
            {"text", codec.encode(sample.text).ids.size()},
            {"stats", statistics.to_json()}};
  }

  // On the driver, in item order.
  void write_record(std::uint64_t, const Json& result) override {
    const std::string uid = result.at("uid");
    feats_.add(uid, result.at("feats").get<std::vector<std::int64_t>>());
    speech_.add(uid, {result.at("speech").get<std::int64_t>()});
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
    // The journal's folder carries the fingerprint of data and frontend, so that a changed one
    // starts anew.
    const std::uint64_t fingerprint =
        hash_combine({dataset->hash(), frontend_of(context.training).hash(),
                      hash64(config::to_json(context.training["dataset"]["preprocessor"]).dump())});
    parallel::RunOptions options;
    options.output_dir = stats_dir / ".collect" / fmt::format("{}-{:016x}", split, fingerprint);
    options.progress = true;
    options.handle_signals = true;
    log::info("{}: {} utterances", split, dataset->size());
    runner(parallel::range(dataset->size()), options);
    runner.write(stats_dir / split);
  }
}

}  // namespace tutti::systems
