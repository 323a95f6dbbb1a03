#include "tutti/data/batching/lengths.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/data/io/table_text.h"

namespace tutti::data {
namespace fs = std::filesystem;
namespace {

constexpr std::uint32_t kAbsent = std::numeric_limits<std::uint32_t>::max();

struct Shape {
  std::uint32_t length = 0;
  std::uint32_t width = 1;
};

// "1203,80" or "1203"
Shape parse_shape(std::string_view text, const fs::path& file, const Row& row) {
  std::uint64_t dims[2] = {0, 1};
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  bool ok = !text.empty();
  for (int i = 0; ok; ++i) {
    std::uint32_t value = 0;
    const auto [stop, status] = std::from_chars(at, end, value);
    ok = status == std::errc{};
    dims[i == 0 ? 0 : 1] *= i == 0 ? 0 : value;
    if (i == 0) dims[0] = value;
    ok = ok && dims[1] < kAbsent;
    if (stop == end) break;
    ok = ok && *stop == ',';
    at = stop + 1;
  }
  if (!ok || dims[0] >= kAbsent)
    throw DataError(fmt::format("{}:{}: {}: got shape '{}', expected whole numbers such as 1203,80",
                                file.string(), row.line, row.key, text));
  return {static_cast<std::uint32_t>(dims[0]), static_cast<std::uint32_t>(dims[1])};
}

// Finds dataset positions for the ids of a shape file.
class Resolver {
 public:
  explicit Resolver(const Dataset& dataset) : dataset_(dataset) {}
  std::size_t operator()(const Row& row, const fs::path& file) {
    if (!by_position_) {
      if (const std::size_t index = dataset_.find(row.key); index != Dataset::kMissing) {
        any_found_ = true;
        return index;
      }
    }
    std::uint64_t position = 0;
    const auto [end, status] =
        std::from_chars(row.key.data(), row.key.data() + row.key.size(), position);
    const bool is_number = status == std::errc{} && end == row.key.data() + row.key.size();
    if (!any_found_ && is_number && position < dataset_.size()) {
      by_position_ = true;
      return position;
    }
    throw DataError(fmt::format("{}:{}: utterance '{}' is not in the dataset", file.string(),
                                row.line, row.key),
                    "the shape file belongs to another dataset; run collect_stats again");
  }

 private:
  const Dataset& dataset_;
  bool any_found_ = false;
  bool by_position_ = false;
};

}  // namespace

LengthTable LengthTable::rows(const std::vector<std::uint32_t>& chosen) const {
  LengthTable out;
  out.item.reserve(chosen.size());
  for (const auto row : chosen) out.item.push_back(item[row]);
  for (const Column& column : columns) {
    Column& copy = out.columns.emplace_back();
    copy.file = column.file;
    copy.length.reserve(chosen.size());
    copy.width.reserve(chosen.size());
    for (const auto row : chosen) {
      copy.length.push_back(column.length[row]);
      copy.width.push_back(column.width[row]);
    }
  }
  return out;
}

LengthTable read_shape_files(const std::vector<fs::path>& files, const Dataset& dataset) {
  LengthTable table;
  std::vector<std::uint32_t> row_of(dataset.size(), kAbsent);
  for (std::size_t f = 0; f < files.size(); ++f) {
    const fs::path& file = files[f];
    if (!fs::exists(file))
      throw_errno("cannot open " + file.string(), ENOENT,
                  "run the collect_stats stage, which writes it");
    const std::string text = read_file(file);
    Resolver resolve(dataset);
    LengthTable::Column column;
    column.file = file.string();
    if (f > 0) {
      column.length.assign(table.size(), kAbsent);
      column.width.assign(table.size(), 1);
    }
    std::size_t num_rows = 0;
    for_each_row(text, column.file, [&](const Row& row) {
      const std::size_t index = resolve(row, file);
      const Shape shape = parse_shape(row.value, file, row);
      ++num_rows;
      std::uint32_t& at = row_of[index];
      if (f == 0) {
        if (at != kAbsent)
          throw DataError(
              fmt::format("{}:{}: utterance '{}' appears twice", column.file, row.line, row.key));
        at = static_cast<std::uint32_t>(table.item.size());
        table.item.push_back(static_cast<std::uint32_t>(index));
        column.length.push_back(shape.length);
        column.width.push_back(shape.width);
        return;
      }
      if (at == kAbsent || column.length[at] != kAbsent)
        throw DataError(
            fmt::format("{}:{}: utterance '{}' {}", column.file, row.line, row.key,
                        at == kAbsent ? "is not in " + files[0].string() : "appears twice"),
            "all shape files must list the same utterances");
      column.length[at] = shape.length;
      column.width[at] = shape.width;
    });
    if (num_rows == 0)
      throw DataError(column.file + ": the shape file is empty", "run collect_stats again");
    if (num_rows != table.size())
      throw DataError(fmt::format("{}: {} utterances, but {} has {}", column.file, num_rows,
                                  files[0].string(), table.size()),
                      "all shape files must list the same utterances");
    table.columns.push_back(std::move(column));
  }
  if (!files.empty() && table.size() < dataset.size())
    log::warning("{} of {} utterances have no line in {} and are left out",
                 dataset.size() - table.size(), dataset.size(), files[0].string());
  return table;
}

LengthTable lengths_of(const Dataset& dataset) {
  LengthTable table;
  LengthTable::Column column;
  column.file = "the manifest";
  bool known = dataset.size() > 0;
  for (std::size_t i = 0; i < dataset.size(); ++i) {
    table.item.push_back(static_cast<std::uint32_t>(i));
    const std::uint64_t n = dataset.num_samples(i);
    known = known && n > 0 && n < kAbsent;
    if (known) column.length.push_back(static_cast<std::uint32_t>(n));
  }
  if (known) {
    column.width.assign(column.length.size(), 1);
    table.columns.push_back(std::move(column));
  }
  return table;
}

std::size_t filter_lengths(LengthTable& table, std::uint64_t min_length, std::uint64_t max_length) {
  if ((min_length == 0 && max_length == 0) || table.columns.empty()) return 0;
  std::vector<std::uint32_t> kept;
  for (std::uint32_t row = 0; row < table.size(); ++row) {
    const std::uint32_t length = table.columns[0].length[row];
    if (length >= min_length && (max_length == 0 || length <= max_length)) kept.push_back(row);
  }
  const std::size_t gone = table.size() - kept.size();
  if (gone > 0) table = table.rows(kept);
  return gone;
}

void ShapeFileWriter::add(std::string_view uid, const std::vector<std::int64_t>& shape) {
  fmt::format_to(std::back_inserter(text_), "{} {}\n", uid, fmt::join(shape, ","));
}

void ShapeFileWriter::write(const fs::path& file) const { write_file_atomic(file, text_); }

}  // namespace tutti::data
