#include "tutti/data/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <thread>

#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/core/units.h"

namespace tutti::data {
namespace {

constexpr const char* kEmptyText = "empty_text";
constexpr const char* kNoTranscript = "no transcript";

void note(std::map<std::string, Finding>& findings, const std::string& kind,
          const std::string& example, std::size_t limit) {
  Finding& finding = findings[kind];
  ++finding.count;
  if (finding.examples.size() < limit) finding.examples.push_back(example);
}

void merge_findings(std::map<std::string, Finding>& into,
                    const std::map<std::string, Finding>& from, std::size_t limit) {
  for (const auto& [kind, finding] : from) {
    Finding& ours = into[kind];
    ours.count += finding.count;
    for (const auto& example : finding.examples)
      if (ours.examples.size() < limit) ours.examples.push_back(example);
  }
}

void check_text(const Sample& sample, const ValidationSettings& settings,
                ValidationReport& report) {
  const auto error = [&](const char* kind, const std::string& what) {
    note(report.errors, kind, sample.uid + ": " + what, settings.examples);
  };
  if (trim(sample.text).empty()) {
    if (settings.needs_text) error(kEmptyText, kNoTranscript);
    return;
  }
  const auto characters = split_characters(sample.text);
  if (characters.size() > settings.max_text_length)
    error("long_text", fmt::format("{} characters, at most {} are expected", characters.size(),
                                   settings.max_text_length));
  if (settings.characters.empty()) return;
  std::string unknown;
  for (const auto& character : characters) {
    if (character == " " || settings.characters.contains(character)) continue;
    ++report.unknown_characters[character];
    if (unknown.find(character) == std::string::npos) unknown += character;
  }
  if (!unknown.empty())
    error("unknown_character", fmt::format("'{}' not in the token list", unknown));
}

void check_audio(const Sample& sample, const ValidationSettings& settings,
                 ValidationReport& report) {
  const auto error = [&](const char* kind, const std::string& what) {
    note(report.errors, kind, sample.uid + ": " + what, settings.examples);
  };
  const auto warning = [&](const char* kind, const std::string& what) {
    note(report.warnings, kind, sample.uid + ": " + what, settings.examples);
  };
  if (sample.sample_rate <= 0 || sample.speech.empty()) return error("no_audio", "no samples");
  const double seconds = static_cast<double>(sample.speech.size()) / sample.sample_rate;
  ++report.sample_rates[sample.sample_rate];
  report.shortest_s = report.seconds == 0 ? seconds : std::min(report.shortest_s, seconds);
  report.longest_s = std::max(report.longest_s, seconds);
  report.seconds += seconds;
  report.num_samples += static_cast<std::int64_t>(sample.speech.size());
  if (seconds < settings.min_seconds)
    error("too_short",
          fmt::format("{:.3f} s, at least {} s are expected", seconds, settings.min_seconds));
  if (seconds > settings.max_seconds)
    error("too_long",
          fmt::format("{:.1f} s, at most {} s are expected", seconds, settings.max_seconds));
  float peak = 0;
  std::size_t clipped = 0;
  bool finite = true;
  for (const float x : sample.speech) {
    finite = finite && std::isfinite(x);
    peak = std::max(peak, std::abs(x));
    clipped += std::abs(x) >= 0.9999F;
  }
  if (!finite) error("not_finite", "NaN or infinity in the audio");
  if (peak == 0) warning("silence", "every sample is 0");
  if (clipped > sample.speech.size() / 100 && clipped > 10)
    warning("clipped", fmt::format("{} of {} samples at the limit", clipped, sample.speech.size()));
}

}  // namespace

std::vector<std::string> split_characters(std::string_view text) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    std::size_t size = lead < 0x80       ? 1
                       : lead >> 5 == 6  ? 2
                       : lead >> 4 == 14 ? 3
                       : lead >> 3 == 30 ? 4
                                         : 1;
    size = std::min(size, text.size() - i);
    for (std::size_t k = 1; k < size; ++k)
      if ((static_cast<unsigned char>(text[i + k]) & 0xC0) != 0x80) size = 1;
    out.emplace_back(text.substr(i, size));
    i += size;
  }
  return out;
}

ValidationReport validate_some(const Dataset& dataset, const ValidationSettings& settings,
                               std::size_t begin, std::size_t end) {
  ValidationReport report;
  report.max_examples = settings.examples;
  for (std::size_t i = begin; i < std::min(end, dataset.size()); ++i) {
    ++report.num_utterances;
    try {
      const Sample sample = dataset.read(i);
      check_audio(sample, settings, report);
      check_text(sample, settings, report);
    } catch (const Error& error) {
      note(report.errors, "unreadable",
           std::string(error.what()).substr(0, std::string(error.what()).find("\n  fix:")),
           settings.examples);
    }
  }
  return report;
}

ValidationReport validate(const Dataset& dataset, const ValidationSettings& settings,
                          int num_threads, const std::function<void(std::size_t)>& on_done) {
  // Slices are merged in order, so examples do not depend on the threads.
  constexpr std::size_t kSlice = 64;
  const std::size_t num_slices = (dataset.size() + kSlice - 1) / kSlice;
  std::vector<ValidationReport> slices(num_slices);
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex mutex;
  const auto work = [&] {
    try {
      for (std::size_t s = next++; s < num_slices; s = next++) {
        slices[s] = validate_some(dataset, settings, s * kSlice, (s + 1) * kSlice);
        if (on_done) on_done(std::min(kSlice, dataset.size() - s * kSlice));
      }
    } catch (...) {  // rethrown below, in the caller's thread
      const std::scoped_lock lock(mutex);
      failure = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < num_threads; ++t) threads.emplace_back(work);
  work();
  for (auto& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  ValidationReport report;
  report.max_examples = settings.examples;
  report.resampled_to = settings.resampled_to;
  for (const auto& slice : slices) report.merge(slice);
  report.finish();
  return report;
}

std::string to_text(const std::string& kind, const Finding& finding) {
  std::string out = fmt::format("{}: {}", kind, finding.count);
  for (const auto& example : finding.examples) out += "\n  " + example;
  const std::int64_t more = finding.count - static_cast<std::int64_t>(finding.examples.size());
  if (more > 0 && kind != "mixed_sample_rates") out += fmt::format("\n  ... and {} more", more);
  return out;
}

Finding empty_texts(const Dataset& dataset) {
  std::map<std::string, Finding> found;
  if (dataset.knows_texts())
    for (std::size_t i = 0; i < dataset.size(); ++i)
      if (trim(dataset.text(i)).empty())
        note(found, kEmptyText, fmt::format("{}: {}", dataset.uid(i), kNoTranscript),
             ValidationSettings().examples);
  return found[kEmptyText];
}

std::int64_t ValidationReport::num_errors() const {
  std::int64_t total = 0;
  for (const auto& [kind, finding] : errors) total += finding.count;
  return total;
}

void ValidationReport::merge(const ValidationReport& other) {
  if (other.seconds > 0) {
    shortest_s = seconds == 0 ? other.shortest_s : std::min(shortest_s, other.shortest_s);
    longest_s = std::max(longest_s, other.longest_s);
  }
  num_utterances += other.num_utterances;
  num_samples += other.num_samples;
  seconds += other.seconds;
  for (const auto& [rate, count] : other.sample_rates) sample_rates[rate] += count;
  for (const auto& [character, count] : other.unknown_characters)
    unknown_characters[character] += count;
  merge_findings(errors, other.errors, max_examples);
  merge_findings(warnings, other.warnings, max_examples);
}

void ValidationReport::finish() {
  if (num_utterances == 0) note(errors, "empty_dataset", "no utterances at all", max_examples);
  if (sample_rates.size() < 2 || resampled_to > 0) return;
  std::string rates;
  std::int64_t fewer = 0, most = 0;
  for (const auto& [rate, count] : sample_rates) {
    rates += fmt::format("{}{} Hz: {}", rates.empty() ? "" : ", ", rate, count);
    most = std::max(most, count);
    fewer += count;
  }
  Finding& finding = errors["mixed_sample_rates"];
  finding.count = fewer - most;
  finding.examples = {rates + " utterances; set sample_rate to resample"};
}

std::string ValidationReport::to_text() const {
  std::string out = fmt::format("{} utterances, {} ({} samples)\n", num_utterances,
                                format_duration(seconds), num_samples);
  if (seconds > 0)
    out += fmt::format("lengths: shortest {:.2f} s, mean {:.2f} s, longest {:.2f} s\n", shortest_s,
                       seconds / static_cast<double>(num_utterances), longest_s);
  for (const auto& [rate, count] : sample_rates)
    out += fmt::format("sample rate {} Hz: {} utterances{}\n", rate, count,
                       resampled_to > 0 && rate != resampled_to
                           ? fmt::format(", resampled to {} Hz", resampled_to)
                           : "");
  const auto section = [&](const char* title, const std::map<std::string, Finding>& findings) {
    for (const auto& [kind, finding] : findings)
      out += fmt::format("{} {}\n", title, data::to_text(kind, finding));
  };
  section("error", errors);
  section("warning", warnings);
  if (!unknown_characters.empty()) {
    out += "characters without a token:";
    for (const auto& [character, count] : unknown_characters)
      out += fmt::format(" '{}' ({})", character, count);
    out += "\n";
  }
  return out + (num_errors() == 0 ? "ok\n" : fmt::format("{} errors\n", num_errors()));
}

Json ValidationReport::to_json() const {
  const auto findings = [](const std::map<std::string, Finding>& all) {
    Json json = Json::object();
    for (const auto& [kind, finding] : all)
      json[kind] = {{"count", finding.count}, {"examples", finding.examples}};
    return json;
  };
  Json rates = Json::object();
  for (const auto& [rate, count] : sample_rates) rates[std::to_string(rate)] = count;
  Json characters = Json::object();
  for (const auto& [character, count] : unknown_characters) characters[character] = count;
  return {{"utterances", num_utterances},
          {"samples", num_samples},
          {"seconds", seconds},
          {"shortest_s", shortest_s},
          {"longest_s", longest_s},
          {"sample_rates", rates},
          {"errors", findings(errors)},
          {"warnings", findings(warnings)},
          {"unknown_characters", characters},
          {"ok", num_errors() == 0}};
}

}  // namespace tutti::data
