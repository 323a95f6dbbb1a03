#include "apps/commands/map_items.h"

#include <fmt/format.h>
#include <unistd.h>

#include "tutti/core/crc32c.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/parallel/worker/item_file.h"

namespace tutti::apps {

MapItems MapItems::numbers(std::uint64_t count) {
  MapItems items;
  items.count_ = count;
  items.numbers_ = true;
  return items;
}

MapItems MapItems::list(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += word + '\0';
  MapItems items;
  items.take(std::move(text), "the command line", true);
  return items;
}

MapItems MapItems::file(const std::filesystem::path& path, bool nul_separated) {
  MapItems items;
  items.take(read_file(path), path.string(), nul_separated);
  return items;
}

MapItems MapItems::standard_input(bool nul_separated) {
  MapItems items;
  items.take(read_all(STDIN_FILENO, "standard input"), "standard input", nul_separated);
  return items;
}

void MapItems::take(std::string text, const std::string& where, bool nul_separated) {
  text_ = std::move(text);
  const char separator = nul_separated ? '\0' : '\n';
  std::uint64_t line = 0;
  for (std::string_view rest = text_; !rest.empty();) {
    const auto end = rest.find(separator);
    const std::string_view item = rest.substr(0, end);
    rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
    ++line;
    if (item.empty() && !nul_separated) {
      if (num_blank_++ == 0) blank_ = fmt::format("{}:{}", where, line);
      continue;
    }
    if (item.find('\0') != item.npos)
      throw DataError(
          fmt::format("{}:{}: the item has a NUL byte, which no command can be given", where, line),
          "where NUL separates the items, say --null");
    items_.push_back(item);
  }
  count_ = items_.size();
}

std::string MapItems::about_blank_lines() const {
  if (num_blank_ == 0) return "";
  return num_blank_ == 1
             ? fmt::format("{}: a blank line is no item", blank_)
             : fmt::format("{}: a blank line is no item, nor are {} more", blank_, num_blank_ - 1);
}

Json MapItems::name(std::uint64_t index) const {
  return numbers_ ? Json(std::to_string(index)) : bytes_to_json(items_.at(index));
}

Json MapItems::fingerprint_of_first(std::uint64_t count) const {
  std::uint32_t crc = 0;
  for (std::uint64_t i = 0; i < count && !numbers_; ++i)
    crc = crc32c(std::string_view("\n", 1), crc32c(items_.at(i), crc));
  return {{"count", count}, {"crc32c", crc}};
}

std::string MapItems::difference_to(const std::filesystem::path& run_folder,
                                    std::uint64_t count_there) const {
  std::string text = fmt::format("it had {} items, now there are {}", count_there, count_);
  std::error_code none;
  const auto path = parallel::item_file_path(run_folder);
  const bool named = std::filesystem::exists(path, none);
  if (named == numbers_)
    return text + (named ? " numbers in place of its list" : ", a list in place of numbers");
  if (numbers_) return text;
  const parallel::ItemFile there(path);
  std::uint64_t i = 0;
  while (i < there.size() && i < count_ && there[i] == items_[i]) ++i;
  if (i < there.size() && i < count_)
    return text + fmt::format("; the first that differs is number {}: it was {}, now it is {}", i,
                              to_json_line(bytes_to_json(there[i])), to_json_line(name(i)));
  return text + fmt::format("; the first {} are the same", i);
}

Json MapItems::to_ship() const {
  constexpr std::size_t kMost = 4 << 20;
  if (numbers_ || text_.size() > kMost) return nullptr;
  Json all = Json::array();
  for (const std::string_view item : items_) all.push_back(bytes_to_json(item));
  return all;
}

std::filesystem::path MapItems::write(const std::filesystem::path& run_folder) const {
  if (numbers_) return {};
  auto path = parallel::item_file_path(run_folder);
  parallel::ItemFile::write(path, items_);
  return path;
}

}  // namespace tutti::apps
