#include <fmt/format.h>

#include <deque>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/speech/metrics/report.h"
#include "tutti/systems/metric_settings.h"
#include "tutti/systems/report/report.h"
#include "tutti/systems/stages.h"

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

MetricSettings read_entry(const config::Node& node) {
  config::Problems problems;
  MetricSettings entry = read_metric(node, problems);
  problems.throw_if_any();
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

}  // namespace

void measure(const StageContext& context) {
  const fs::path inference_dir = context.folder("inference_dir");
  std::deque<speech::ErrorRate> metrics;  // the report points into it
  speech::MetricsReport report;
  int position = 0;
  for (const auto& node : context.metrics["metrics"].elements()) {
    const MetricSettings entry = read_entry(node);
    for (const auto& set : test_sets(context, inference_dir)) {
      const fs::path folder = inference_dir / set;
      auto& metric = metrics.emplace_back(error_rate(entry));
      for (const auto& pair : speech::read_text_pairs(folder / (entry.ref_key + ".scp"),
                                                      folder / (entry.hyp_key + ".scp")))
        metric.add({.id = pair.id, .speaker = {}}, pair.reference, pair.hypothesis);
      report.add(entry.target, set, metric, position);
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
  write_file_atomic(inference_dir / "metrics.html",
                    report.to_html(context.folder("exp_dir").filename().string()));
  fmt::print("{}", report.to_text());
  const fs::path page = write_report({.exp_dir = context.folder("exp_dir"),
                                      .inference_dir = inference_dir,
                                      .training = context.training});
  log::info("report: {}", page.string());
}

}  // namespace tutti::systems
