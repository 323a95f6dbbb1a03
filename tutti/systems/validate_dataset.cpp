#include <fmt/format.h>

#include <thread>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/progress.h"
#include "tutti/core/status.h"
#include "tutti/core/text.h"
#include "tutti/data/validate.h"
#include "tutti/systems/corpus.h"
#include "tutti/systems/fingerprints.h"
#include "tutti/systems/stages.h"

namespace tutti::systems {

void validate_dataset(const StageContext& context) {
  const std::filesystem::path data_dir = context.folder("data_dir");
  const config::Node limits = context.training["validate_dataset"];
  data::ValidationSettings settings;
  settings.min_seconds = limits["min_seconds"].value_or(settings.min_seconds);
  settings.max_seconds = limits["max_seconds"].value_or(settings.max_seconds);
  // The loader resamples, so files may differ in rate; people are told what they have.
  const bool has_features = context.training["model"]["input_size"].value_or(0) > 0;
  if (!has_features) settings.resampled_to = sample_rate_of(context.training);
  const int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  std::string text;
  Json json = Json::object();
  std::int64_t errors = 0;
  std::vector<std::string> checked;
  for (const CheckedSet& set : checked_sets(context)) {
    settings.needs_text = set.needs_text;
    const auto dataset = set.open();
    checked.push_back(fmt::format("{} ({})", set.name, dataset->size()));
    ProgressBar progress("checking " + set.name, dataset->size());
    const auto report = data::validate(*dataset, settings, threads,
                                       [&](std::size_t count) { progress.add(count); });
    for (const auto& [rate, count] : report.sample_rates)
      if (!has_features && rate != settings.resampled_to)
        log::info("{}: {} of {} utterances have {} Hz and are resampled to {} Hz", set.name, count,
                  dataset->size(), rate, settings.resampled_to);
    text += fmt::format("== {}\n{}\n", set.name, report.to_text());
    json[set.name] = report.to_json();
    errors += report.num_errors();
  }
  write_file_atomic(data_dir / "validation.json", json.dump(1) + "\n");
  write_file_atomic(data_dir / "validation.txt", text);
  if (errors > 0)
    throw DataError(fmt::format("{} errors in the dataset\n{}", errors, text),
                    "see " + (data_dir / "validation.txt").string());
  log::info("no errors in {}; see {}", join(checked, ", "),
            shown_path(data_dir / "validation.txt"));
}

}  // namespace tutti::systems
