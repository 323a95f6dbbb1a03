#include "tutti/data/collate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "tutti/core/error.h"

namespace tutti::data {
namespace {

// One field of one sample, whatever member it lives in.
struct View {
  DType dtype = DType::kFloat32;
  std::int64_t length = 0;
  std::vector<std::int64_t> inner;  // dimensions after the first
  const void* data = nullptr;
};

template <class T>
void fill(void* into, std::int64_t count, double value) {
  std::fill_n(static_cast<T*>(into), count, static_cast<T>(value));
}

void fill(DType dtype, void* into, std::int64_t count, const CollateSettings& settings) {
  switch (dtype) {
    case DType::kFloat32:
      return fill<float>(into, count, settings.float_pad_value);
    case DType::kFloat64:
      return fill<double>(into, count, settings.float_pad_value);
    case DType::kUint8:
      return fill<std::uint8_t>(into, count, 0);  // -1 has no place here
    case DType::kInt16:
      return fill<std::int16_t>(into, count, static_cast<double>(settings.int_pad_value));
    case DType::kInt32:
      return fill<std::int32_t>(into, count, static_cast<double>(settings.int_pad_value));
    case DType::kInt64:
      std::fill_n(static_cast<std::int64_t*>(into), count, settings.int_pad_value);
      return;
  }
}

void stack(Batch& batch, const std::string& name, const std::vector<View>& rows,
           const CollateSettings& settings, const Allocator& allocate) {
  const View& first = rows.front();
  std::int64_t longest = 0;
  for (std::size_t b = 0; b < rows.size(); ++b) {
    if (rows[b].dtype != first.dtype || rows[b].inner != first.inner)
      throw DataError(fmt::format(
          "{}: field '{}' is {} [{}, {}], but {} has {} [{}, {}]: they cannot be one batch",
          batch.uids[b], name, dtype_name(rows[b].dtype), rows[b].length,
          fmt::join(rows[b].inner, ", "), batch.uids[0], dtype_name(first.dtype), first.length,
          fmt::join(first.inner, ", ")));
    longest = std::max(longest, rows[b].length);
  }
  std::int64_t width = 1;  // elements per step of the first dimension
  for (const auto dim : first.inner) width *= dim;
  std::vector<std::int64_t> shape = {static_cast<std::int64_t>(rows.size()), longest};
  shape.insert(shape.end(), first.inner.begin(), first.inner.end());
  Array array = Array::make(first.dtype, shape, allocate);
  Array lengths = Array::make(DType::kInt64, {static_cast<std::int64_t>(rows.size())}, allocate);
  const auto step = static_cast<std::size_t>(width) * dtype_size(first.dtype);
  auto* out = static_cast<char*>(array.bytes.get());
  for (std::size_t b = 0; b < rows.size(); ++b) {
    const auto used = static_cast<std::size_t>(rows[b].length) * step;
    if (used > 0) std::memcpy(out, rows[b].data, used);
    fill(first.dtype, out + used, (longest - rows[b].length) * width, settings);
    out += static_cast<std::size_t>(longest) * step;
    lengths.data<std::int64_t>()[b] = rows[b].length;
  }
  batch.arrays.emplace(name, std::move(array));
  batch.arrays.emplace(name + "_lengths", std::move(lengths));
}

}  // namespace

config::Schema<CollateSettings> collate_schema() {
  config::Schema<CollateSettings> s("collate_fn",
                                    "How samples of different length become one array.");
  s.field("float_pad_value", &CollateSettings::float_pad_value, "padding of audio and features");
  s.field("int_pad_value", &CollateSettings::int_pad_value, "padding of token ids");
  return s;
}

Batch collate(std::vector<Sample> samples, const CollateSettings& settings,
              const Allocator& allocate) {
  Batch batch;
  if (samples.empty()) return batch;
  const bool has_speech = std::any_of(samples.begin(), samples.end(),
                                      [](const Sample& s) { return !s.speech.empty(); });
  const bool has_tokens = std::any_of(samples.begin(), samples.end(), [](const Sample& s) {
    return s.is_tokenized || !s.tokens.empty();
  });
  for (Sample& sample : samples) {
    batch.uids.push_back(sample.uid);
    batch.texts.push_back(sample.text);
  }
  std::vector<View> rows(samples.size());
  if (has_speech) {
    for (std::size_t b = 0; b < samples.size(); ++b) {
      const std::int64_t width = std::max<std::int64_t>(samples[b].feature_dim, 1);
      rows[b] = {DType::kFloat32,
                 static_cast<std::int64_t>(samples[b].speech.size()) / width,
                 {},
                 samples[b].speech.data()};
      if (samples[b].feature_dim > 0) rows[b].inner = {width};
    }
    stack(batch, "speech", rows, settings, allocate);
  }
  if (has_tokens) {
    for (std::size_t b = 0; b < samples.size(); ++b)
      rows[b] = {DType::kInt64,
                 static_cast<std::int64_t>(samples[b].tokens.size()),
                 {},
                 samples[b].tokens.data()};
    stack(batch, "text", rows, settings, allocate);
  }
  for (const auto& [name, unused] : samples.front().extra) {
    for (std::size_t b = 0; b < samples.size(); ++b) {
      const auto found = samples[b].extra.find(name);
      if (found == samples[b].extra.end() || found->second.shape.empty())
        throw DataError(fmt::format("{}: field '{}' is missing, {} has it", samples[b].uid, name,
                                    samples.front().uid));
      const Array& array = found->second;
      rows[b] = {array.dtype,
                 array.shape[0],
                 {array.shape.begin() + 1, array.shape.end()},
                 array.bytes.get()};
    }
    stack(batch, name, rows, settings, allocate);
  }
  return batch;
}

}  // namespace tutti::data
