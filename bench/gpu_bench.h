// What the benchmarks for GPUs share: options and profiles.
#pragma once

#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/torch.h>

#include <map>
#include <set>
#include <string>

#include "tutti/core/error.h"

namespace tutti::bench {

using Options = std::map<std::string, std::string>;

// `--key value` pairs over defaults; throws ConfigError on a key that has none.
inline Options parse_options(int argc, char** argv, Options options) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    const auto found = word.starts_with("--") ? options.find(word.substr(2)) : options.end();
    if (found == options.end()) throw ConfigError(fmt::format("unknown option {}", word));
    found->second = argv[i + 1];
  }
  return options;
}

inline void start_profile() {
  using namespace torch::profiler::impl;
  using namespace torch::autograd::profiler;
  const ProfilerConfig config(ProfilerState::KINETO);
  const std::set<ActivityType> activities{ActivityType::CPU, ActivityType::CUDA};
  prepareProfiler(config, activities);
  enableProfiler(config, activities);
}

// For a trace viewer.
inline void save_profile(const std::string& file) {
  torch::autograd::profiler::disableProfiler()->save(file);
}

}  // namespace tutti::bench
