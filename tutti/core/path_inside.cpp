#include "tutti/core/path_inside.h"

namespace tutti {

std::filesystem::path path_inside(const std::filesystem::path& path,
                                  const std::filesystem::path& folder) {
  const auto inside = path.lexically_normal().lexically_relative(folder.lexically_normal());
  return inside.empty() || *inside.begin() == ".." ? std::filesystem::path() : inside;
}

}  // namespace tutti
