// Loading a config: a 50,000-token inline list, and a small training file.
//
// `bench_config_load` prints milliseconds and the peak memory of this process; bench/config_load.sh
// puts them beside Debian's python3-yaml (C loader) in the same run and prints the ratio.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "tutti/config/load.h"
#include "tutti/core/file.h"

namespace {

double milliseconds_of(const auto& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

}  // namespace

int main(int argc, char** argv) {
  using namespace tutti::config;
  const tutti::TempFolder folder("tutti-bench");
  const std::filesystem::path file =
      argc > 1 ? std::filesystem::path(argv[1]) : folder.path() / "tokens.yaml";
  if (argc <= 1) {
    std::string text = "token_list: [";
    for (int i = 0; i < 50000; ++i) text += fmt::format("{}tok{}", i ? ", " : "", i);
    tutti::write_file_atomic(file, text + "]\n");
  }
  double best = 1e9;
  for (int round = 0; round < 5; ++round)
    best = std::min(best, milliseconds_of([&] { load({.files = {file}}); }));
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  fmt::print("{{\"name\": \"config_load_50k_tokens\", \"best_ms\": {:.1f}, \"peak_mb\": {:.1f}}}\n",
             best, static_cast<double>(usage.ru_maxrss) / 1024);
  return 0;
}
