// The fenced blocks of a page, also those in lists.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"

namespace tutti {

struct Block {
  std::string where;     // "data.md:23", the line of its fence
  std::string language;  // what stands behind the fence: "yaml", "console test"
  std::vector<std::string> lines;

  std::string text() const {
    std::string all;
    for (const auto& line : lines) all += line + "\n";
    return all;
  }
};

inline std::vector<Block> blocks_of(const std::filesystem::path& page) {
  std::vector<Block> blocks;
  bool inside = false;
  std::size_t margin = 0;
  int number = 0;
  for (const auto& line : split(read_file(page), '\n')) {
    ++number;
    const std::size_t begin = line.find_first_not_of(' ');
    if (begin != std::string::npos && line.compare(begin, 3, "```") == 0) {
      inside = !inside;
      margin = begin;
      if (inside)
        blocks.push_back(
            {page.filename().string() + ":" + std::to_string(number), line.substr(begin + 3), {}});
    } else if (inside) {
      blocks.back().lines.push_back(line.substr(std::min({margin, begin, line.size()})));
    }
  }
  return blocks;
}

inline std::vector<std::filesystem::path> docs_pages() {
  std::vector<std::filesystem::path> pages;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(in_source("docs"))))
    if (entry.path().extension() == ".md") pages.push_back(entry.path());
  return pages;
}

}  // namespace tutti
