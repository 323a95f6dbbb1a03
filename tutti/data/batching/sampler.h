// From lengths to batches: the seven algorithms of ESPnet and our own, `bucketed`.
//
//   BatchList list = make_batches({.type = "numel", .batch_bins = 4000000}, lengths);
//
// Samplers are pure functions of their arguments; a batch is a list of rows of the LengthTable.
// Composition matches ESPnet's Python classes for unsorted, sorted, folded, length and numel
// (checked against golden files made by them); catbel and catpow follow the same rules with our
// random numbers. Two repairs: `unsorted` with categories splits by each category's own size
// (ESPnet uses the whole corpus's and loses utterances), and `folded` never runs off the list when
// it spreads a small last batch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/config/plugin_kind.h"
#include "tutti/config/schema.h"
#include "tutti/data/batching/lengths.h"

namespace tutti::data {

// The `batches:` block.
struct BatchSettings {
  std::string type = "bucketed";
  std::optional<std::int64_t> batch_size;  // utterances
  std::optional<std::int64_t> batch_bins;  // n x longest x dims, summed over the shape files
  std::vector<std::string> shape_files;
  std::int64_t min_batch_size = 1;
  std::optional<std::int64_t> max_batch_size;  // bucketed, catpow
  std::string sort_in_batch = "descending";
  std::string sort_batch = "ascending";
  bool drop_last = false;
  bool padding = true;                     // length, numel: count the padding
  std::vector<std::int64_t> fold_lengths;  // folded: one per shape file
  std::string utt2category_file;           // unsorted, folded: batches never mix categories
  std::string category2utt_file;           // catbel, catpow
  double upsampling_factor = 1.0;          // catpow
  double dataset_scaling_factor = 1.2;     // catpow
  double bucket_spread = 0.1;   // bucketed: lengths in a bucket differ by about this part
  std::int64_t min_length = 0;  // first shape file; 0: no limit
  std::int64_t max_length = 0;
};
config::Schema<BatchSettings> batch_schema();

// Batches in two flat arrays.
class BatchList {
 public:
  std::size_t size() const noexcept { return ends_.size(); }
  std::size_t num_items() const noexcept { return items_.size(); }
  std::span<const std::uint32_t> operator[](std::size_t batch) const noexcept {
    const std::size_t begin = batch == 0 ? 0 : ends_[batch - 1];
    return {items_.data() + begin, ends_[batch] - begin};
  }
  void add(std::span<const std::uint32_t> batch) {
    items_.insert(items_.end(), batch.begin(), batch.end());
    ends_.push_back(static_cast<std::uint32_t>(items_.size()));
  }
  void reserve(std::size_t num_batches, std::size_t num_items) {
    ends_.reserve(num_batches);
    items_.reserve(num_items);
  }
  const std::vector<std::uint32_t>& items() const noexcept { return items_; }
  const std::vector<std::uint32_t>& ends() const noexcept { return ends_; }
  static BatchList from_arrays(std::vector<std::uint32_t> items, std::vector<std::uint32_t> ends);
  bool operator==(const BatchList&) const = default;

 private:
  std::vector<std::uint32_t> items_;
  std::vector<std::uint32_t> ends_;
};

// Rows of each category, in the order of the category file.
struct Categories {
  std::vector<std::vector<std::uint32_t>> rows;
};
// `<utt> <category>` lines. Throws DataError when utterances and rows of the table differ.
Categories read_utt2category(const std::filesystem::path& file, const LengthTable& table,
                             const Dataset& dataset);
// `<category> <utt> <utt> ...` lines.
Categories read_category2utt(const std::filesystem::path& file, const LengthTable& table,
                             const Dataset& dataset);

// What a draw depends on besides settings and lengths. `world` is used by `bucketed` only, whose
// list is then whole groups of `world` similar batches.
struct DrawKey {
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  int world = 1;
};

// Throws DataError when nothing can be batched, ConfigError when the settings do not fit the table.
BatchList make_batches(const BatchSettings& settings, const LengthTable& table,
                       const Categories& categories = {}, const DrawKey& key = {});

// A plugin's own algorithm, named by `batches.type`; it has the keys of `batches:`. Pure, as the built-in ones are.
struct Sampler {
  std::string name;
  std::function<BatchList(const BatchSettings&, const LengthTable&, const DrawKey&)> make;
};
using SamplerRegistry = std::vector<Sampler>;
std::vector<std::string> sampler_types();  // what batches.type may be
SamplerRegistry& sampler_registry();       // add before training begins; not thread-safe

// True when batches differ between epochs in number or choice of utterances (catbel, catpow).
bool draws_utterances(const BatchSettings& settings);

// The padded size of a batch: the number that batch_bins limits.
std::uint64_t padded_bins(const LengthTable& table, std::span<const std::uint32_t> batch);

}  // namespace tutti::data

template <>
struct tutti::config::PluginKind<tutti::data::Sampler> {
  using Registry = data::SamplerRegistry;
  static void add(Registry& samplers,
                  data::Sampler sampler);  // throws ConfigError for a name that is taken
};
