#include "tutti/data/features/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tutti/core/error.h"
#include "tutti/data/io/npy.h"

namespace tutti::data {

void ExactSum::add(double x) {
  std::size_t kept = 0;
  for (double part : parts_) {
    if (std::abs(x) < std::abs(part)) std::swap(x, part);
    const double high = x + part;
    const double low = part - (high - x);
    if (low != 0) parts_[kept++] = low;
    x = high;
  }
  parts_.resize(kept);
  if (x != 0) parts_.push_back(x);
}

double ExactSum::value() const {
  if (parts_.empty()) return 0;
  std::size_t i = parts_.size() - 1;
  double high = parts_[i];
  double low = 0;
  while (i > 0) {
    const double x = high;
    const double y = parts_[--i];
    high = x + y;
    low = y - (high - x);
    if (low != 0) break;
  }
  // Half-way cases: what lies below decides the direction.
  if (i > 0 && ((low < 0 && parts_[i - 1] < 0) || (low > 0 && parts_[i - 1] > 0))) {
    const double twice = low * 2;
    const double rounded = high + twice;
    if (twice == rounded - high) high = rounded;
  }
  return high;
}

ExactSum ExactSum::from_parts(const std::vector<double>& parts) {
  ExactSum sum;
  for (const double part : parts) sum.add(part);
  return sum;
}

namespace {

template <class T>
void sum_frames(const T* data, std::size_t frames, std::size_t dim, std::vector<double>& sum,
                std::vector<double>& square) {
  for (std::size_t t = 0; t < frames; ++t)
    for (std::size_t d = 0; d < dim; ++d) {
      const double x = data[t * dim + d];
      sum[d] += x;
      square[d] += x * x;
    }
}

}  // namespace

void Statistics::add(const Array& feats) {
  const auto rank = feats.shape.size();
  if (rank != 1 && rank != 2)
    throw DataError(
        fmt::format("statistics of an array with {} dimensions, expected [T, D] or [D]", rank));
  const auto frames = static_cast<std::size_t>(rank == 2 ? feats.shape[0] : 1);
  const auto width = static_cast<std::size_t>(feats.shape[rank - 1]);
  if (dim() == 0 && count_ == 0) *this = Statistics(width);
  if (width != dim())
    throw DataError(fmt::format("features have {} dimensions, those before had {}", width, dim()));
  std::vector<double> sum(width, 0.0), square(width, 0.0);
  if (feats.dtype == DType::kFloat32)
    sum_frames(feats.data<float>(), frames, width, sum, square);
  else
    sum_frames(feats.data<double>(), frames, width, sum, square);
  for (std::size_t d = 0; d < width; ++d)
    if (!std::isfinite(square[d]))
      throw DataError(fmt::format("features have a value that is not finite in dimension {}", d));
  for (std::size_t d = 0; d < width; ++d) {
    sum_[d].add(sum[d]);
    sum_square_[d].add(square[d]);
  }
  count_ += static_cast<std::int64_t>(frames);
}

void Statistics::merge(const Statistics& other) {
  if (other.count_ == 0) return;
  if (dim() == 0 && count_ == 0) *this = Statistics(other.dim());
  if (other.dim() != dim())
    throw DataError(
        fmt::format("statistics of {} and of {} dimensions cannot be merged", dim(), other.dim()));
  for (std::size_t d = 0; d < dim(); ++d) {
    sum_[d].merge(other.sum_[d]);
    sum_square_[d].merge(other.sum_square_[d]);
  }
  count_ += other.count_;
}

namespace {
std::vector<double> values(const std::vector<ExactSum>& sums) {
  std::vector<double> out;
  for (const auto& sum : sums) out.push_back(sum.value());
  return out;
}
}  // namespace

std::vector<double> Statistics::sum() const { return values(sum_); }
std::vector<double> Statistics::sum_square() const { return values(sum_square_); }

std::vector<double> Statistics::mean() const {
  std::vector<double> out = sum();
  for (double& x : out) x /= static_cast<double>(std::max<std::int64_t>(count_, 1));
  return out;
}

std::vector<double> Statistics::variance() const {
  std::vector<double> out = sum_square();
  const std::vector<double> means = mean();
  for (std::size_t d = 0; d < out.size(); ++d)
    out[d] = std::max(
        0.0, out[d] / static_cast<double>(std::max<std::int64_t>(count_, 1)) - means[d] * means[d]);
  return out;
}

void Statistics::write_npz(const std::filesystem::path& file) const {
  Array count = Array::make(DType::kInt64, {});
  *count.data<std::int64_t>() = count_;
  data::write_npz(
      file,
      {{"count", count}, {"sum", Array::from(sum())}, {"sum_square", Array::from(sum_square())}});
}

Statistics Statistics::read_npz(const std::filesystem::path& file) {
  const auto arrays = data::read_npz(file);
  for (const char* name : {"count", "sum", "sum_square"})
    if (!arrays.contains(name))
      throw DataError(fmt::format("{}: no array '{}': not a statistics file", file.string(), name));
  const std::vector<double> count = to_doubles(arrays.at("count"));
  const std::vector<double> sum = to_doubles(arrays.at("sum"));
  const std::vector<double> square = to_doubles(arrays.at("sum_square"));
  if (count.size() != 1 || sum.size() != square.size())
    throw DataError(file.string() + ": arrays do not fit together");
  if (!(count[0] >= 0 && count[0] < 9e15))
    throw DataError(file.string() + ": count is not a number of frames");
  Statistics out(sum.size());
  out.count_ = static_cast<std::int64_t>(count[0]);
  for (std::size_t d = 0; d < sum.size(); ++d) {
    out.sum_[d].add(sum[d]);
    out.sum_square_[d].add(square[d]);
  }
  return out;
}

Json Statistics::to_json() const {
  Json json = {{"count", count_}, {"sum", Json::array()}, {"sum_square", Json::array()}};
  for (const auto& sum : sum_) json["sum"].push_back(sum.parts());
  for (const auto& sum : sum_square_) json["sum_square"].push_back(sum.parts());
  return json;
}

Statistics Statistics::from_json(const Json& json, const std::string& where) {
  try {
    const auto sum = json.at("sum").get<std::vector<std::vector<double>>>();
    const auto square = json.at("sum_square").get<std::vector<std::vector<double>>>();
    if (sum.size() != square.size()) throw DataError(where + ": sum and sum_square differ in size");
    Statistics out(sum.size());
    out.count_ = json.at("count").get<std::int64_t>();
    for (std::size_t d = 0; d < sum.size(); ++d) {
      out.sum_[d] = ExactSum::from_parts(sum[d]);
      out.sum_square_[d] = ExactSum::from_parts(square[d]);
    }
    return out;
  } catch (const Json::exception& error) {
    throw DataError(fmt::format("{}: not statistics: {}", where, error.what()));
  }
}

}  // namespace tutti::data
