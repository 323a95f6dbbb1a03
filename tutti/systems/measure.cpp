#include <fmt/format.h>

#include <deque>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/speech/metrics/report.h"
#include "tutti/systems/report/report.h"
#include "tutti/systems/stages.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

struct MetricEntry {
  std::string target;
  std::string ref_key = "ref";
  std::string hyp_key = "hyp";
  speech::ErrorRateConfig config;
};

// The keys may be renamed through `inputs`: {ref: text} reads text.scp as the reference.
std::string scp_stem(const config::Node& inputs, const std::string& key) {
  return inputs.is_map() && inputs[key].defined() ? inputs[key].as<std::string>() : key;
}

MetricEntry read_entry(const config::Node& node) {
  const config::Node metric = node["metric"];
  MetricEntry entry;
  entry.target = metric["_target_"].as<std::string>();
  const std::string name = split(entry.target, '.').back();
  if (name == "WER")
    entry.config.kind = speech::ErrorKind::kWord;
  else if (name == "CER")
    entry.config.kind = speech::ErrorKind::kCharacter;
  else if (name == "TER")
    entry.config.kind = speech::ErrorKind::kToken;
  else
    throw ConfigError(fmt::format("{}: {}._target_: got '{}', expected WER, CER or TER",
                                  metric.mark().describe(), metric.path(), entry.target));
  entry.ref_key = scp_stem(node["inputs"], metric["ref_key"].value_or<std::string>("ref"));
  entry.hyp_key = scp_stem(node["inputs"], metric["hyp_key"].value_or<std::string>("hyp"));
  const config::Node cleaners = metric["clean_types"];
  if (cleaners.is_list())
    entry.config.cleaners = cleaners.as<std::vector<std::string>>();
  else if (!cleaners.is_null())
    entry.config.cleaners = {cleaners.as<std::string>()};
  if (entry.config.kind == speech::ErrorKind::kToken)
    entry.config.tokenizer = speech::make_tokenizer(
        {.token_type = "bpe", .bpemodel = metric["bpemodel"].as<std::string>()});
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
    const MetricEntry entry = read_entry(node);
    for (const auto& set : test_sets(context, inference_dir)) {
      const fs::path folder = inference_dir / set;
      auto& metric = metrics.emplace_back(entry.config);
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
