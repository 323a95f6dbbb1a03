#include "tutti/systems/metric_settings.h"

#include "tutti/core/error.h"
#include "tutti/speech/text/cleaners.h"

namespace tutti::systems {
namespace {

using config::Node;
using config::Problems;

struct Row {
  const char* name;
  const char* doc;
  const char* theirs;
};
constexpr Row kMetrics[] = {{"wer", "Word error rate.", "espnet3.systems.asr.metrics.wer.WER"},
                            {"cer", "Character error rate.", "espnet3.systems.asr.metrics.cer.CER"},
                            {"ter", "Token error rate.", "espnet3.systems.asr.metrics.ter.TER"}};

config::Schema<MetricSettings> metric_schema(const Row& row) {
  config::Schema<MetricSettings> s(row.name, row.doc);
  s.field("ref_key", &MetricSettings::ref_key, "field with the reference");
  s.field("hyp_key", &MetricSettings::hyp_key, "field with the hypothesis");
  s.field("clean_types", &MetricSettings::cleaners, "text cleaners, one or a list");
  if (std::string(row.name) == "ter")
    s.field("bpemodel", &MetricSettings::bpemodel,
            "sentencepiece model; empty: the one that the experiment was trained with");
  s.refused("token_list", {}, "remove it: pieces of the sentencepiece model are compared");
  return s;
}

void read_cleaners(MetricSettings& out, Problems& problems) {
  if (out.cleaners.is_null()) return;
  std::string expected;
  if (out.cleaners.is_scalar())
    out.clean_types = {out.cleaners.raw()};
  else if (!read(out.cleaners, out.clean_types, expected))
    problems.add(out.cleaners, "got " + out.cleaners.describe_value() + ", expected " + expected);
  try {
    const speech::TextCleaner tried(out.clean_types);
  } catch (const ConfigError& e) {
    problems.add(out.cleaners, e.what());
  }
}

}  // namespace

void add_metric_components(config::Catalogue& catalogue) {
  for (const Row& row : kMetrics) catalogue.add("metric", metric_schema(row), {row.theirs});
}

MetricSettings read_metric(const Node& entry, Problems& problems) {
  MetricSettings out;
  if (!entry.is_map()) {
    problems.add(entry,
                 "got " + entry.describe_value() + ", expected {metric: _target_ node, inputs}");
    return out;
  }
  config::check_unknown_keys(
      entry, {"metric", "inputs"},
      {{"ref_key", "put it under metric"}, {"hyp_key", "put it under metric"}}, problems);
  config::Catalogue catalogue;
  add_metric_components(catalogue);
  const Node metric = entry["metric"];
  const config::Component* found = catalogue.require("metric", metric, problems);
  if (found == nullptr) return out;
  for (const Row& row : kMetrics)
    if (found->name == row.name && metric.is_map())
      out = metric_schema(row).parse(metric, problems);
  out.name = found->name;
  out.target = metric.is_map() ? metric["_target_"].raw() : metric.raw();
  read_cleaners(out, problems);
  // The fields may be renamed through `inputs`: {ref: text} reads text.scp as the reference.
  for (std::string* key : {&out.ref_key, &out.hyp_key}) {
    const Node renamed = entry["inputs"].is_map() ? entry["inputs"][*key] : Node();
    if (renamed.is_scalar()) *key = renamed.raw();
  }
  return out;
}

}  // namespace tutti::systems
