// Datasets and audio for the tests of this room.
#pragma once

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <numbers>
#include <string>
#include <vector>

#include "tests/places.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"
#include "tutti/data/batching/lengths.h"
#include "tutti/data/dataset.h"

namespace tutti::data::testing {

// Utterances u0, u1, ... whose "audio" is their own number; some may be told to fail.
class FakeDataset : public Dataset {
 public:
  explicit FakeDataset(std::size_t n) : n_(n) {}
  std::size_t size() const override { return n_; }
  std::string uid(std::size_t i) const override { return "u" + std::to_string(i); }
  std::size_t find(std::string_view uid) const override {
    if (uid.size() < 2 || uid[0] != 'u') return kMissing;
    const std::size_t i = std::strtoull(std::string(uid.substr(1)).c_str(), nullptr, 10);
    return i < n_ ? i : kMissing;
  }
  Sample read(std::size_t i) const override {
    for (const auto bad : bad_)
      if (bad == i) throw DataError("fake: " + uid(i) + ": damaged");
    Sample sample;
    sample.uid = uid(i);
    sample.speech.assign(1 + i % 5, static_cast<float>(i));
    sample.sample_rate = 16000;
    sample.text = "text " + std::to_string(i);
    return sample;
  }
  std::uint64_t num_samples(std::size_t i) const override { return 1 + i % 5; }
  std::uint64_t hash() const override { return n_; }
  std::vector<std::size_t> bad_;

 private:
  std::size_t n_;
};

inline std::vector<float> sine(double hz, double seconds, int rate, double amplitude = 0.5) {
  std::vector<float> out(static_cast<std::size_t>(seconds * rate));
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<float>(
        amplitude * std::sin(2 * std::numbers::pi * hz * static_cast<double>(i) / rate));
  return out;
}

// The folder of shared corpora, or empty: then the test skips itself.
inline std::filesystem::path shared_data() {
  std::vector<std::filesystem::path> places;
  if (const char* shared = std::getenv("TUTTI_SHARED"))
    places.push_back(std::filesystem::path(shared) / "data");
  places.push_back(std::filesystem::path(in_source("..")) / "shared" / "data");
  for (const auto& place : places)
    if (std::filesystem::exists(place / "fsdd.tar.gz")) return place;
  return {};
}

inline void unpack(const std::filesystem::path& archive, const std::filesystem::path& folder) {
  const CommandResult result =
      run_command({.argv = {"tar", "xzf", archive.string(), "-C", folder.string()}});
  if (!result.ok()) throw IoError(result.describe());
}

}  // namespace tutti::data::testing
