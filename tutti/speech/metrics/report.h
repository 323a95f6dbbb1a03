// Results for people and programs: metrics.json, aligned text, tables, one HTML page.
//
//   MetricsReport report;
//   report.add("espnet3.systems.asr.metrics.wer.WER", "test-clean", wer);
//   write_file_atomic(dir / "metrics.json", report.to_json().dump(2));
//   write_file_atomic(dir / "test-clean" / "wer_alignment", alignment_text(wer));
//   write_file_atomic(dir / "metrics.html", report.to_html("my experiment"));
//
// metrics.json has ESPnet3's shape, {class path: {test set: {"WER": 12.34, ...}}}, with the counts
// and the confidence interval beside the rate. A second metric of the same class (other cleaners,
// other keys) becomes "<class path>#2" instead of replacing the first. The HTML page needs no other
// file and shows every text escaped.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/speech/metrics/error_rate.h"

namespace tutti::speech {

// REF, HYP and an EVAL line of S, D, I marks per utterance that has errors, then the totals; for
// `all` also the utterances without errors.
std::string alignment_text(const ErrorRate& metric, bool all = true);
// speaker, utterances, tokens, S, D, I, rate; worst speakers first, the sum in the last line.
std::string speaker_table(const ErrorRate& metric);
// The line of one metric on one test set as JSON: {"WER": 12.34, "ci95": [11.9, 12.8], ...}.
Json summary_json(const ErrorRate& metric);
std::string escape_html(std::string_view text);
// Where a page finds the audio of an utterance, relative to itself; empty: nowhere.
using AudioLink = std::function<std::string(const std::string& test_set, const std::string& id)>;

class MetricsReport {
 public:
  // Copies nothing: `metric` must outlive the report.
  // One metric entry on several test sets is several calls with the same `entry`; entries of the
  // same class path need different `entry` numbers (their position in the config).
  // `num_undecoded`: utterances of the set that have no hypothesis; no rate counts them, so every output tells them.
  void add(const std::string& class_path, const std::string& test_set, const ErrorRate& metric,
           int entry = 0, std::size_t num_undecoded = 0);

  Json to_json() const;
  std::string to_text() const;  // one line per metric and test set
  // Each metric of each test set has a section with its errors, the worst utterances first.
  std::string to_html(const std::string& title, const AudioLink& audio = {}) const;

 private:
  struct Row {
    std::string class_path;
    int entry;
    std::string test_set;
    const ErrorRate* metric;
    std::size_t num_undecoded;
  };
  std::vector<std::pair<std::string, const Row*>> named_rows() const;
  std::vector<Row> rows_;
};

}  // namespace tutti::speech
