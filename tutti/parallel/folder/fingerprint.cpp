#include "tutti/parallel/folder/fingerprint.h"

#include <sys/stat.h>

#include <cerrno>

#include "tutti/core/error.h"
#include "tutti/core/random.h"

namespace tutti::parallel {
namespace {

std::string shorten(const Json& value) {
  std::string text = value.is_null() ? "nothing" : value.dump();
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

void compare(const Json& was, const Json& is, const std::string& path,
             std::vector<std::string>& out, std::size_t limit) {
  if (was == is || out.size() >= limit) return;
  if (was.is_object() && is.is_object()) {
    for (const auto& [key, value] : was.items())
      compare(value, is.value(key, Json(nullptr)), path.empty() ? key : path + "." + key, out,
              limit);
    for (const auto& [key, value] : is.items())
      if (!was.contains(key))
        compare(nullptr, value, path.empty() ? key : path + "." + key, out, limit);
    return;
  }
  out.push_back(path + ": was " + shorten(was) + ", is " + shorten(is));
}

}  // namespace

Json file_stamps(const std::vector<std::string>& paths) {
  Json stamps = Json::object();
  for (const std::string& path : paths) {
    struct stat info {};
    if (::stat(path.c_str(), &info) != 0) throw_errno("cannot stat " + path, errno);
    stamps[path] = {{"size", info.st_size},
                    {"mtime_ns", info.st_mtim.tv_sec * 1000000000LL + info.st_mtim.tv_nsec}};
  }
  return stamps;
}

std::uint64_t fingerprint_hash(const Json& parts) { return hash64(parts.dump()); }

std::vector<std::string> fingerprint_differences(const Json& was, const Json& is,
                                                 std::size_t limit) {
  std::vector<std::string> out;
  compare(was, is, "", out, limit);
  return out;
}

}  // namespace tutti::parallel
