// Looks at every utterance of a dataset and tells what is wrong, on one page.
//
//   ValidationReport report = validate(*train, {.max_seconds = 30, .tokens = tokens});
//   fmt::print("{}", report.to_text());
//   return report.num_errors() == 0 ? 0 : int(ExitCode::kData);
//
// Errors would break or spoil training (unreadable audio, mixed sample rates, empty text,
// characters without a token); warnings are worth a look. `validate_some` does a slice, and reports
// merge, so that the check can run on the parallel layer. Thread-safe on a Dataset.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/data/dataset.h"

namespace tutti::data {

struct ValidationSettings {
  double min_seconds = 0.1;
  double max_seconds = 60;
  bool needs_text = true;
  std::size_t max_text_length = 1000;  // characters (code points)
  // Characters that may appear; empty: not checked. A space is always allowed.
  std::set<std::string> characters;
  std::size_t examples = 5;  // utterances shown per kind of finding
  int resampled_to = 0;      // Hz; 0: audio is used as it is, so that all must have one rate
};

struct Finding {
  std::int64_t count = 0;
  std::vector<std::string> examples;  // "utt_7: what exactly"
};

// "empty_text: 7" and a line per example, without a newline at the end.
std::string to_text(const std::string& kind, const Finding& finding);

struct ValidationReport {
  std::int64_t num_utterances = 0;
  std::int64_t num_samples = 0;
  double seconds = 0;
  double shortest_s = 0, longest_s = 0;
  std::map<int, std::int64_t> sample_rates;  // Hz -> utterances
  std::map<std::string, Finding> errors;     // by kind, e.g. "unreadable"
  std::map<std::string, Finding> warnings;
  std::map<std::string, std::int64_t> unknown_characters;
  std::size_t max_examples = 5;
  int resampled_to = 0;  // Hz; 0: not

  std::int64_t num_errors() const;
  void merge(const ValidationReport& other);
  // Findings that only show when everything is in: call once after the last merge.
  void finish();
  std::string to_text() const;
  Json to_json() const;
};

// All of it, in `num_threads` threads; finished. `on_done` hears, from any of them, that so many more
// utterances are done.
ValidationReport validate(const Dataset& dataset, const ValidationSettings& settings,
                          int num_threads = 1,
                          const std::function<void(std::size_t)>& on_done = {});
// Utterances [begin, end); not finished.
ValidationReport validate_some(const Dataset& dataset, const ValidationSettings& settings,
                               std::size_t begin, std::size_t end);

// Utterances without a transcript, for a word before training; empty where texts are not known
// without reading the audio.
Finding empty_texts(const Dataset& dataset);

// The characters of a UTF-8 text; bytes that are not UTF-8 come as they are.
std::vector<std::string> split_characters(std::string_view text);

}  // namespace tutti::data
