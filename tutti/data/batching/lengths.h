// How long each utterance is: what the samplers see of a dataset.
//
//   LengthTable lengths = read_shape_files({"exp/stats/train/feats_shape"}, *dataset);
//
// One row per utterance, in the order of the first file (samplers sort stably, so that order
// matters); one column per shape file. Rows of a shape file are `<uid> 1203,80`: the length first,
// then the dimensions that do not vary. Eight bytes per utterance and column; no strings.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tutti/data/dataset.h"

namespace tutti::data {

struct LengthTable {
  struct Column {
    std::string file;                   // for errors
    std::vector<std::uint32_t> length;  // first dimension
    std::vector<std::uint32_t> width;   // product of the others; 1 when there are none
  };
  std::vector<std::uint32_t> item;  // row -> index in the dataset
  std::vector<Column> columns;      // empty: lengths are not known

  std::size_t size() const noexcept { return item.size(); }
  LengthTable rows(const std::vector<std::uint32_t>& chosen) const;
};

// Ids are those of the dataset; files written by ESPnet3, whose ids are plain positions ("0", "1"),
// are understood too. Throws DataError when files disagree about the ids, an id is not in the
// dataset, or a row is not numbers. Utterances without a row are left out, with a warning.
LengthTable read_shape_files(const std::vector<std::filesystem::path>& files,
                             const Dataset& dataset);
// Without shape files: the number of samples, where the manifest knows it for every utterance; else
// a table without columns (good for `unsorted` with a batch_size only).
LengthTable lengths_of(const Dataset& dataset);

// Keeps rows whose first column lies in [min, max] (0: no limit). Returns how many went.
std::size_t filter_lengths(LengthTable& table, std::uint64_t min_length, std::uint64_t max_length);

// Writes `<uid> 1203,80` lines, atomically.
class ShapeFileWriter {
 public:
  void add(std::string_view uid, const std::vector<std::int64_t>& shape);
  void write(const std::filesystem::path& file) const;

 private:
  std::string text_;
};

}  // namespace tutti::data
