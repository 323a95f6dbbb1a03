#include "tutti/core/fingerprint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tutti/core/crc32c.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/random.h"
#include "tutti/core/threads.h"

namespace tutti {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kContent = "content ";  // how a file's value begins

std::string relative_to(const std::string& text, const Places& places) {
  for (const auto& [name, folder] : places) {
    const std::string root = folder.string();
    if (root.empty() || root == "/" || text.compare(0, root.size(), root) != 0) continue;
    if (text.size() > root.size() && text[root.size()] != '/') continue;
    return "${" + name + "}" + text.substr(root.size());
  }
  return text;
}

Json canonical(const Json& value, const Places& places) {
  if (value.is_string()) return relative_to(value.get<std::string>(), places);
  if (value.is_array()) {
    Json out = Json::array();
    for (const Json& item : value) out.push_back(canonical(item, places));
    return out;
  }
  if (!value.is_object()) return value;
  std::vector<std::string> keys;
  for (const auto& [key, unused] : value.items()) keys.push_back(key);
  std::sort(keys.begin(), keys.end());
  Json out = Json::object();
  for (const std::string& key : keys) out[key] = canonical(value.at(key), places);
  return out;
}

bool is_content(const Json& value) {
  return value.is_string() && value.get_ref<const std::string&>().starts_with(kContent);
}

std::string shorten(const Json& value) {
  if (is_content(value)) return "there";
  const auto is_word = [](const Json& item) { return item.is_string() && !is_content(item); };
  if (value.is_array() && !std::all_of(value.begin(), value.end(), is_word))  // a command is shown
    return fmt::format("a list of {}", value.size());
  if (value.is_object()) {
    const auto target = value.find("_target_");
    return target != value.end() && target->is_string() ? target->get<std::string>() : "a block";
  }
  std::string text = value.is_null() ? "nothing" : to_json_line(value);
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

void compare(const Json& was, const Json& is, const std::string& path, std::size_t limit,
             std::vector<std::string>& out) {
  if (was == is || out.size() >= limit) return;
  const auto below = [&](const std::string& key) { return path.empty() ? key : path + "." + key; };
  if (was.is_object() && is.is_object()) {
    for (const auto& [key, value] : was.items())
      compare(value, is.value(key, Json(nullptr)), below(key), limit, out);
    for (const auto& [key, value] : is.items())
      if (!was.contains(key)) compare(nullptr, value, below(key), limit, out);
    return;
  }
  if (was.is_array() && is.is_array() && was.size() == is.size()) {
    for (std::size_t i = 0; i < was.size(); ++i)
      compare(was[i], is[i], below(std::to_string(i)), limit, out);
    return;
  }
  out.push_back(is_content(was) && is_content(is)
                    ? path + ": other content"
                    : fmt::format("{}: was {}, is {}", path, shorten(was), shorten(is)));
}

}  // namespace

// Weights have gigabytes: their pieces are read by several threads.
std::string content_mark(const fs::path& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd && (errno == ENOENT || errno == ENOTDIR)) return "missing";
  if (!fd) throw_errno("cannot open " + file.string(), errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_errno("cannot read " + file.string(), errno);
  struct Part {
    std::uint32_t crc = 0;
    std::uint64_t size = 0;
  };
  constexpr std::uint64_t kPart = std::uint64_t{64} << 20;
  std::vector<Part> parts(static_cast<std::size_t>(info.st_size) / kPart + 1);
  in_threads(parts.size(), threads_at_most(8), [&](std::size_t i) {
    std::string buffer(std::size_t{1} << 20, '\0');
    const bool is_last = i + 1 == parts.size();  // whatever was appended meanwhile is its
    while (is_last || parts[i].size < kPart) {
      const std::uint64_t left = is_last ? buffer.size() : kPart - parts[i].size;
      const ssize_t n =
          ::pread(fd.get(), buffer.data(), std::min<std::uint64_t>(buffer.size(), left),
                  static_cast<off_t>(i * kPart + parts[i].size));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) throw_errno("cannot read " + file.string(), errno);
      if (n == 0) break;
      parts[i].crc = crc32c({buffer.data(), static_cast<std::size_t>(n)}, parts[i].crc);
      parts[i].size += static_cast<std::uint64_t>(n);
    }
  });
  Part whole;
  for (const Part& part : parts) {
    whole.crc = crc32c_combine(whole.crc, part.crc, part.size);
    whole.size += part.size;
  }
  return fmt::format("{}{:08x} of {} bytes", kContent, whole.crc, whole.size);
}

Fingerprint& Fingerprint::add(const std::string& name, const Json& value, const Places& places) {
  json_[name] = canonical(value, places);
  return *this;
}

Fingerprint& Fingerprint::add_file(const std::string& name, const fs::path& file) {
  json_[name] = content_mark(file);
  return *this;
}

std::uint64_t Fingerprint::hash() const { return hash64(to_json_line(json_)); }

std::vector<std::string> Fingerprint::changes_since(const Fingerprint& before,
                                                    std::size_t limit) const {
  std::vector<std::string> out;
  compare(before.json_, json_, "", limit, out);
  return out;
}

}  // namespace tutti
