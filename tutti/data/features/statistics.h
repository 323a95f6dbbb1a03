// Means and variances that do not depend on who computed which part.
//
//   Statistics a(80), b(80);
//   a.add(feats_of_utt_1);  b.add(feats_of_utt_2);     // two workers
//   a.merge(b);                                         // = one worker, to the last bit
//   a.write_npz("exp/stats/train/feats_stats.npz");     // count, sum, sum_square: ESPnet reads it
//
// Each utterance is summed in double from its first frame to its last; utterances are then added
// exactly (no rounding until the end), so any split over workers, any order and any number of
// restarts gives the same file. A value type; not synchronised.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/data/array.h"

namespace tutti::data {

// A sum of doubles without rounding error: a short list of non-overlapping parts (Shewchuk 1997).
class ExactSum {
 public:
  void add(double x);
  void merge(const ExactSum& other) {
    for (const double part : other.parts_) add(part);
  }
  double value() const;  // correctly rounded
  const std::vector<double>& parts() const noexcept { return parts_; }
  static ExactSum from_parts(const std::vector<double>& parts);

 private:
  std::vector<double> parts_;  // increasing magnitude
};

class Statistics {
 public:
  explicit Statistics(std::size_t dim = 0) : sum_(dim), sum_square_(dim) {}
  std::size_t dim() const noexcept { return sum_.size(); }
  std::int64_t count() const noexcept { return count_; }
  // Features of one utterance, float32 or float64, [T, D] or [D]. The first sets the dimension when
  // it is 0. Throws DataError when D differs or a value is not finite.
  void add(const Array& feats);
  // Throws DataError when dimensions differ.
  void merge(const Statistics& other);
  std::vector<double> sum() const;
  std::vector<double> sum_square() const;
  std::vector<double> mean() const;
  std::vector<double> variance() const;  // of the population, at least 0

  // `count` (int64), `sum`, `sum_square` (float64 [D]).
  void write_npz(const std::filesystem::path& file) const;
  static Statistics read_npz(const std::filesystem::path& file);
  // The exact state of a shard, to be merged later by another process.
  Json to_json() const;
  static Statistics from_json(const Json& json, const std::string& where);

 private:
  std::int64_t count_ = 0;  // frames
  std::vector<ExactSum> sum_, sum_square_;
};

}  // namespace tutti::data
