#include <fmt/format.h>

#include <deque>
#include <map>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/progress.h"
#include "tutti/core/status.h"
#include "tutti/core/text.h"
#include "tutti/parallel/folder/run_folder.h"
#include "tutti/speech/metrics/report.h"
#include "tutti/systems/corpus.h"
#include "tutti/systems/experiment_config.h"
#include "tutti/systems/fingerprints.h"
#include "tutti/systems/item_model.h"
#include "tutti/systems/metric_settings.h"
#include "tutti/systems/pack.h"
#include "tutti/systems/report/report.h"
#include "tutti/systems/stages.h"
#include "tutti/systems/training/kept_tokens.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

speech::ErrorRateConfig error_rate(const MetricSettings& settings) {
  speech::ErrorRateConfig config;
  config.kind = settings.name == "wer"   ? speech::ErrorKind::kWord
                : settings.name == "cer" ? speech::ErrorKind::kCharacter
                                         : speech::ErrorKind::kToken;
  config.cleaners = settings.clean_types;
  if (config.kind == speech::ErrorKind::kToken)
    config.tokenizer = speech::make_tokenizer({.token_type = "bpe", .bpemodel = settings.bpemodel});
  return config;
}

MetricSettings read_entry(const config::Node& node, const fs::path& exp_dir) {
  config::Problems problems;
  MetricSettings entry = read_metric(node, problems);
  problems.throw_if_any();
  if (entry.name != "ter" || !entry.bpemodel.empty()) return entry;
  if (fs::exists(exp_dir / "config.yaml"))
    for (const TokenFile& kept : token_files(read_experiment_config(exp_dir / "config.yaml")))
      if (kept.key == "dataset.preprocessor.bpemodel") entry.bpemodel = kept.file.string();
  if (entry.bpemodel.empty())
    throw ConfigError(fmt::format("{}: bpemodel: got nothing, and {} was not trained with one",
                                  entry.target, exp_dir.string()),
                      "name a sentencepiece model under metric:");
  return entry;
}

// The sets the config names, or every folder that inference left.
std::vector<std::string> test_sets(const StageContext& context, const fs::path& inference_dir) {
  std::vector<std::string> names;
  for (const auto& entry : context.metrics["dataset"]["test"].elements())
    names.push_back(entry["name"].as<std::string>());
  if (!names.empty()) return names;
  if (fs::is_directory(inference_dir)) {
    for (const auto& entry : fs::directory_iterator(inference_dir))
      if (entry.is_directory() && entry.path().extension() != ".old" &&
          fs::exists(entry.path() / "results.jsonl"))
        names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  if (names.empty())
    throw DataError(inference_dir.string() + ": no test sets to measure",
                    "run the infer stage first");
  return names;
}

// What the fingerprint of a recogniser's results says of its weights; null for other models.
Json weights_of(const Json& fingerprint) {
  return fingerprint.is_object() ? fingerprint.value("asr_model_file", Json()) : Json();
}

Json weights_in_place(const StageContext& context) {
  if (!context.inference.defined() || context.inference["model"].is_null()) return {};
  try {
    return weights_of(item_model_inputs(context.inference).json());
  } catch (const Error&) {
    return {};  // they are not needed to score what is there
  }
}

// The weights each set was decoded with; sets of other models are left out.
Json decoded_weights(const StageContext& context, const fs::path& inference_dir) {
  Json weights = Json::object();
  for (const auto& set : test_sets(context, inference_dir)) {
    const Json manifest = parallel::read_manifest(inference_dir / set);
    const Json then =
        manifest.is_object() ? weights_of(manifest.value("fingerprint", Json())) : Json();
    if (!then.is_null()) weights[set] = then;
  }
  return weights;
}

// Utterances of a set that have no result, as infer left them out (on_bad: skip); 0 for files that no run made.
std::size_t num_undecoded(const fs::path& folder, std::size_t num_scored) {
  const Json manifest = parallel::read_manifest(folder);
  const auto items = manifest.is_object() ? manifest.value("items", std::size_t{0}) : 0;
  return items > num_scored ? items - num_scored : 0;
}

// Keeps which weights each set was decoded with, and warns of those that training has gone past.
void note_weights(const StageContext& context, const fs::path& inference_dir) {
  const Json now = weights_in_place(context);
  const Json measured = decoded_weights(context, inference_dir);
  for (const auto& [set, then] : measured.items())
    if (!now.is_null() && now != then)
      log::warning(
          "{}: these results came from other weights than those in place now; run the infer stage "
          "again",
          set);
  write_file_atomic(inference_dir / kMeasuredWeights, measured.dump(2) + "\n");
}

// What was said in the worst utterances, so that the page of errors can play it: clips/N/M.wav for
// the first that are asked for. Without an inference config nobody knows where the audio is.
class Clips {
 public:
  Clips(const StageContext& context, fs::path folder) : folder_(std::move(folder)) {
    std::error_code absent;
    fs::remove_all(folder_, absent);
    if (!context.inference.defined()) return;
    try {
      sets_ = open_parts(context.inference, "test", context.folder("data_dir"), 0);
    } catch (const Error& error) {
      log::debug("no audio beside the errors: {}", error.what());
    }
  }

  std::string link(const std::string& set, const std::string& id) {
    std::map<std::string, std::string>& known = links_[set];
    if (const auto found = known.find(id); found != known.end()) return found->second;
    return known.size() < kMost ? known[id] = write(set, id, known.size()) : "";
  }

 private:
  static constexpr std::size_t kMost = 50;  // of a test set

  std::string write(const std::string& set, const std::string& id, std::size_t number) const {
    for (const auto& [name, dataset] : sets_) {
      const std::size_t index = name == set ? dataset->find(id) : data::Dataset::kMissing;
      if (index == data::Dataset::kMissing) continue;
      try {
        data::Sample sample = dataset->read(index);
        if (sample.feature_dim > 0) return "";
        const fs::path file =
            folder_ / std::to_string(set_number(set)) / fmt::format("{}.wav", number);
        make_folders(file.parent_path());
        data::write_wav(file,
                        {.samples = std::move(sample.speech), .sample_rate = sample.sample_rate});
        return file.lexically_relative(folder_.parent_path()).string();
      } catch (const Error& error) {
        log::debug("no audio of {}: {}", id, error.what());
      }
    }
    return "";
  }
  // Numbers instead of names: those may hold what no file name and no link may.
  std::size_t set_number(const std::string& set) const {
    std::size_t number = 0;
    while (number < sets_.size() && sets_[number].name != set) ++number;
    return number;
  }

  fs::path folder_;
  std::vector<data::NamedDataset> sets_;
  std::map<std::string, std::map<std::string, std::string>> links_;  // set -> id -> link
};

}  // namespace

Fingerprint measure_inputs(const StageContext& context) {
  const fs::path inference_dir = context.folder("inference_dir");
  const fs::path exp_dir = context.folder("exp_dir");
  for (const fs::path& output : {inference_dir / "metrics.json", exp_dir / "report.html"})
    if (!fs::exists(output)) return {};  // measure, whatever the record says
  Fingerprint inputs;
  inputs.add("metrics", config::to_json(context.metrics["metrics"]), places_of(context.metrics));
  inputs.add("weights", weights_in_place(context));
  inputs.add("decoded with", decoded_weights(context, inference_dir));
  inputs.add_file("training", exp_dir / "metrics.jsonl");  // its curves are in the report
  const auto sets = test_sets(context, inference_dir);
  inputs.add("sets", sets);
  for (const auto& node : context.metrics["metrics"].elements()) {
    const MetricSettings entry = read_entry(node, exp_dir);
    if (!entry.bpemodel.empty()) inputs.add_file(entry.target + ".bpemodel", entry.bpemodel);
    for (const auto& set : sets)
      for (const auto& key : {entry.ref_key, entry.hyp_key})
        inputs.add_file(set + "." + key, inference_dir / set / (key + ".scp"));
  }
  return inputs;
}

void measure(const StageContext& context) {
  const fs::path inference_dir = context.folder("inference_dir");
  std::deque<speech::ErrorRate> metrics;  // the report points into it
  speech::MetricsReport report;
  std::map<std::string, std::string> undecoded;  // set -> what is to be told
  int position = 0;
  for (const auto& node : context.metrics["metrics"].elements()) {
    const MetricSettings entry = read_entry(node, context.folder("exp_dir"));
    for (const auto& set : test_sets(context, inference_dir)) {
      const fs::path folder = inference_dir / set;
      auto& metric = metrics.emplace_back(error_rate(entry));
      const auto pairs = speech::read_text_pairs(folder / (entry.ref_key + ".scp"),
                                                 folder / (entry.hyp_key + ".scp"));
      ProgressBar progress("scoring " + set, pairs.size());
      for (const auto& pair : pairs) {
        metric.add({.id = pair.id, .speaker = {}}, pair.reference, pair.hypothesis);
        progress.add();
      }
      const std::size_t left_out = num_undecoded(folder, pairs.size());
      if (left_out > 0)
        undecoded[set] = fmt::format("{} of {} utterances", left_out, left_out + pairs.size());
      report.add(entry.target, set, metric, position, left_out);
      std::string name = speech::name_of(metric.kind());
      std::transform(name.begin(), name.end(), name.begin(),
                     [](unsigned char c) { return std::tolower(c); });
      write_file_atomic(folder / (name + "_alignment"), speech::alignment_text(metric));
    }
    ++position;
  }
  if (metrics.empty())
    throw ConfigError("metrics: got an empty list, expected at least one metric");
  write_file_atomic(inference_dir / "metrics.json", report.to_json().dump(2) + "\n");
  Clips clips(context, inference_dir / "clips");
  write_file_atomic(inference_dir / "metrics.html",
                    report.to_html(context.folder("exp_dir").filename().string() + ": every error",
                                   [&](const std::string& set, const std::string& id) {
                                     return clips.link(set, id);
                                   }));
  fmt::print("{}", report.to_text());
  for (const auto& [set, some] : undecoded)
    log::warning(
        "{}: {} could not be decoded and are not in its error rates; the reasons are in {}", set,
        some, shown_path(inference_dir / set / "failed.jsonl"));
  note_weights(context, inference_dir);
  const fs::path page = write_report({.exp_dir = context.folder("exp_dir"),
                                      .inference_dir = inference_dir,
                                      .training = context.training});
  log::info("report: {}", shown_path(page));
}

}  // namespace tutti::systems
