#include "tutti/systems/dataset_builder.h"

#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/data/sources.h"

namespace tutti::systems {

DatasetBuilderRegistry& dataset_builder_registry() {
  static DatasetBuilderRegistry builders = {
      {"digits", make_digits_builder},
      {"fsdd", make_fsdd_builder},
      {"librispeech_100", make_librispeech_builder},
      {"mini_an4", make_mini_an4_builder},
  };
  return builders;
}

std::vector<std::string> dataset_builder_names() {
  std::vector<std::string> names;
  for (const auto& [name, make] : dataset_builder_registry()) names.push_back(name);
  return names;
}

std::unique_ptr<DatasetBuilder> make_dataset_builder(std::string_view data_src) {
  const std::string_view name = data_src.substr(0, data_src.find('/'));
  const auto found = dataset_builder_registry().find(name);
  if (found != dataset_builder_registry().end()) return found->second();
  const auto names = dataset_builder_names();
  const std::string guess = closest_match(name, names);
  throw ConfigError(
      fmt::format("data_src: got '{}', expected one of {}", data_src, join(names, ", ")),
      guess.empty() ? "name a manifest in data_src_args instead"
                    : fmt::format("did you mean '{}'?", guess));
}

bool is_built(const config::Node& entry) {
  return !data::DatasetSources::standard().has(data::implied_source(entry));
}

std::string data_source_of(const config::Node& config, const config::Node& entry) {
  if (!is_built(entry)) return {};
  if (!entry["data_src"].is_null()) return entry["data_src"].as<std::string>();
  const config::Node recipe_dir = config["recipe_dir"];
  if (!recipe_dir.is_scalar()) return {};
  std::string source;
  for (const auto& part : std::filesystem::absolute(recipe_dir.raw()).lexically_normal())
    if (dataset_builder_registry().count(part.string()) > 0) source = part.string();
  return source;
}

std::filesystem::path manifest_path(const std::filesystem::path& data_dir, std::string_view split) {
  return data_dir / fmt::format("{}.jsonl", split);
}

void write_manifest(const std::filesystem::path& path, const std::vector<Json>& utterances) {
  std::string text;
  for (const auto& utterance : utterances) text += to_json_line(utterance) + "\n";
  write_file_atomic(path, text);
}

void for_each_parallel(std::string_view what, std::size_t count,
                       const std::function<void(std::size_t)>& work) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;                           // guarded by mutex
  double last_report = Clock::system().unix_seconds();  // guarded by mutex
  const auto loop = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {  // carried to the caller; the other threads stop at their next item
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = count;
      }
      const std::lock_guard lock(mutex);
      const double now = Clock::system().unix_seconds();
      if (now - last_report < 5) continue;
      last_report = now;
      log::info("{}: {} of {}", what, std::min(i + 1, count), count);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::max(1U, std::thread::hardware_concurrency()); ++t)
    threads.emplace_back(loop);
  for (auto& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace tutti::systems
