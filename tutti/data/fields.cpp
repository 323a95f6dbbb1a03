#include "tutti/data/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"
#include "tutti/data/io/kaldi_matrix.h"
#include "tutti/data/io/table_text.h"
#include "tutti/data/text_column.h"

namespace tutti::data {
namespace {

namespace fs = std::filesystem;
using config::Node;
using config::Problems;

// `<utterance> <value>` per line, in the file's order.
struct Table {
  std::string file;
  TextColumn keys, values;
  TextIndex index;
};

std::shared_ptr<const Table> read_table(const std::string& file) {
  auto table = std::make_shared<Table>();
  table->file = file;
  const std::string text = read_file(file);
  for_each_row(text, file, [&](const Row& row) {
    table->keys.add(row.key);
    table->values.add(row.value);
  });
  std::size_t twice = TextIndex::kMissing;
  table->index = TextIndex(table->keys, &twice);
  if (twice != TextIndex::kMissing)
    throw DataError(fmt::format("{}: utterance '{}' is there twice", file, table->keys[twice]),
                    "keep one of the lines");
  return table;
}

// "3 4 5" or "3,4,5".
template <class T>
Array numbers(std::string_view text, char separator, const std::string& where) {
  std::vector<T> out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    const std::string_view word = trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty() && separator == ' ') continue;
    T value{};
    const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || stop != word.data() + word.size())
      throw DataError(fmt::format("{}: got '{}', expected {}", where, word,
                                  std::is_integral_v<T> ? "a whole number" : "a number"),
                      "mend the line, or give the field another type");
    out.push_back(value);
  }
  return Array::from(out);
}

// As in a Kaldi folder: from the working folder, or else from the list's own.
std::string found_path(std::string_view entry, const std::string& list) {
  const std::size_t colon = entry.ends_with(".npy") ? std::string_view::npos : entry.rfind(':');
  const fs::path file(entry.substr(0, colon));
  const fs::path beside = fs::path(list).parent_path() / file;
  if (file.is_relative() && !fs::exists(file) && fs::exists(beside))
    return beside.string() +
           std::string(colon == std::string_view::npos ? "" : entry.substr(colon));
  return std::string(entry);
}

Array read_value(std::string_view value, const std::string& type, const std::string& where,
                 const std::string& list) {
  const char separator = type.starts_with("csv") ? ',' : ' ';
  if (type.ends_with("_int")) return numbers<std::int64_t>(value, separator, where);
  if (type.ends_with("_float")) return numbers<float>(value, separator, where);
  Array array = read_array(found_path(value, list));
  if (array.shape.empty()) array.shape = {1};  // one number
  return array;
}

}  // namespace

config::Schema<FieldSettings> field_schema() {
  config::Schema<FieldSettings> s("fields of a dataset entry",
                                  "A further tensor of the batch, by its name.");
  s.field("path", &FieldSettings::path, "a list with `<utterance> <value>` per line",
          {.required = true});
  s.field("type", &FieldSettings::type,
          "what a value is: a .npy file, a place in a Kaldi archive, numbers with blanks or commas "
          "between them",
          {.one_of = {"npy", "kaldi_ark", "text_int", "text_float", "csv_int", "csv_float"},
           .required = true});
  return s;
}

void check_fields(const Node& fields, Problems& problems) {
  if (fields.is_null()) return;
  if (!fields.is_map()) {
    problems.add(fields, "got " + fields.describe_value() + ", expected a map",
                 "write fields: {spk: {path: data/utt2spk_id, type: text_int}}");
    return;
  }
  for (const auto& [name, field] : fields.items()) {
    if (name == "speech" || name == "text" || name.ends_with("_lengths"))
      problems.add(field, fmt::format("the batch has a tensor '{}' already", name),
                   "choose another name");
    field_schema().parse(field, problems);
  }
}

std::vector<std::string> field_tensors(const Node& fields) {
  std::vector<std::string> names;
  for (const auto& [name, field] : fields.items()) {
    names.push_back(name);
    names.push_back(name + "_lengths");
  }
  return names;
}

std::vector<std::function<void(Sample&)>> open_fields(const Node& fields, const Dataset& dataset) {
  std::vector<std::function<void(Sample&)>> out;
  for (const auto& [name, node] : fields.items()) {
    Problems none;  // they were checked
    const FieldSettings settings = field_schema().parse(node, none);
    const auto table = read_table(settings.path);
    for (std::size_t i = 0; i < dataset.size(); ++i)
      if (table->index.find(table->keys, dataset.uid(i)) == TextIndex::kMissing)
        throw DataError(fmt::format("{}: field '{}': utterance '{}' is not there", settings.path,
                                    name, dataset.uid(i)),
                        "every utterance needs a line");
    out.emplace_back([name = name, type = settings.type, table](Sample& sample) {
      const std::size_t row = table->index.find(table->keys, sample.uid);
      const std::string where = fmt::format("{}: {}", table->file, sample.uid);
      try {
        sample.extra[name] = read_value(table->values[row], type, where, table->file);
      } catch (const IoError& error) {
        throw DataError(fmt::format("{}: field '{}': {}", where, name, error.what()),
                        "check the file, or set on_bad: skip");
      }
    });
  }
  return out;
}

}  // namespace tutti::data
