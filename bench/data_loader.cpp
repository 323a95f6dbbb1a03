// Planning a million utterances, and reading + log-mel + collating an epoch; bench/data_loader.sh
// runs the same work in Python beside it.
//
//   bench_data_loader plan 1000000            -> {"seconds": .., "peak_mb": ..}
//   bench_data_loader load wav.scp 2          -> {"utterances": .., "seconds": .., "checksum": ..}
#include <fmt/format.h>
#include <sys/resource.h>

#include <chrono>

#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/core/random.h"
#include "tutti/data/features/fbank.h"
#include "tutti/data/loader.h"

namespace {

using namespace tutti;
using namespace tutti::data;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double peak_mb() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

Json plan(std::size_t count) {
  LengthTable table;
  table.columns.push_back({.file = "lengths"});
  std::uint64_t state = 1;
  for (std::size_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    table.item.push_back(static_cast<std::uint32_t>(i));
    table.columns[0].length.push_back(static_cast<std::uint32_t>(16000 + (state >> 33) % 240000));
    table.columns[0].width.push_back(1);
  }
  const auto start = Clock::now();
  PlanSettings settings;
  settings.batches.batch_bins = 4000000;
  settings.shuffle = true;
  settings.world = 8;
  const EpochPlan epoch = BatchPlan(settings, std::move(table)).epoch(0);
  return {
      {"seconds", seconds_since(start)}, {"groups", epoch.num_groups()}, {"peak_mb", peak_mb()}};
}

Json load(const std::string& scp, int workers) {
  const auto dataset = open_manifest(read_kaldi_manifest({.wav_scp = scp}));
  const Fbank fbank({.win_length = 400, .hop_length = 160});
  const auto start = Clock::now();
  PlanSettings settings;
  settings.batches.type = "unsorted";
  settings.batches.batch_size = 16;
  Loader loader({.num_workers = workers}, dataset,
                [&fbank](Sample& sample, std::uint64_t) {
                  sample.extra["feats"] = fbank.compute(sample.speech);
                  sample.speech.clear();
                },
                BatchPlan(settings, dataset).epoch(0), 0, {});
  std::int64_t utterances = 0;
  double checksum = 0;
  while (const auto batch = loader.next()) {
    utterances += batch->weight();
    const Array& feats = batch->arrays.at("feats");
    for (std::int64_t row = 0; row < batch->weight(); ++row)
      checksum += static_cast<double>(feats.data<float>()[row * feats.shape[1] * feats.shape[2]]);
  }
  return {{"utterances", utterances}, {"seconds", seconds_since(start)}, {"checksum", checksum}};
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 3) throw ConfigError("usage: bench_data_loader plan COUNT | load WAV_SCP WORKERS");
    const Json result = std::string(argv[1]) == "plan" ? plan(std::stoul(argv[2]))
                                                       : load(argv[2], std::stoi(argv[3]));
    fmt::print("{}\n", to_json_line(result));
    return 0;
  } catch (const std::exception&) {
    return report_and_exit_code();
  }
}
