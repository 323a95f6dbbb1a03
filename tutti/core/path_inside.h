// Where a path lies seen from a folder.
//
//   path_inside("/a/b/c.txt", "/a");   // "b/c.txt"
//   path_inside("/a", "/a");           // "."
//   path_inside("/b", "/a");           // "": elsewhere
//
// By names alone: nothing is looked up, links are not followed. Both are absolute, or both begin at one place.
#pragma once

#include <filesystem>

namespace tutti {

std::filesystem::path path_inside(const std::filesystem::path& path,
                                  const std::filesystem::path& folder);

}  // namespace tutti
