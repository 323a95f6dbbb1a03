#include "tutti/launch/rendezvous.h"

#include <fmt/format.h>

#include <cctype>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"

namespace tutti::launch {

std::string Publication::to_text() const {
  return to_json_line(
      Json{{"tutti_rendezvous", 1}, {"hosts", hosts}, {"port", port}, {"nonce", secret}});
}

std::optional<Publication> Publication::parse(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || json.value("tutti_rendezvous", Json()) != 1) return std::nullopt;
  const Json hosts = json.value("hosts", Json());
  const Json port = json.value("port", Json());
  const Json secret = json.value("nonce", Json());
  if (!hosts.is_array() || !port.is_number_integer() || !secret.is_string()) return std::nullopt;
  Publication publication;
  for (const Json& host : hosts) {
    if (!host.is_string()) return std::nullopt;
    publication.hosts.push_back(host.get<std::string>());
  }
  publication.port = port.get<int>();
  publication.secret = secret.get<std::string>();
  return publication;
}

std::filesystem::path publication_path(const std::filesystem::path& run_folder,
                                       const std::string& service, const RankContext& rank) {
  std::string name;
  for (const char c : rank.run_id) {
    const bool plain =
        std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '.' || c == '_';
    name.push_back(plain ? c : '_');
  }
  return run_folder / ".rendezvous" /
         fmt::format("{}-{}-r{}.json", service, name, rank.restart_count);
}

void write_publication(const std::filesystem::path& path, const Publication& publication) {
  make_folders(path.parent_path());
  write_file_atomic(path, publication.to_text(), 0600);
}

std::optional<Publication> read_publication(const std::filesystem::path& path) {
  try {
    return Publication::parse(read_file(path));
  } catch (
      const IoError&) {  // not there yet, or a network file system that lags: asked again later
    return std::nullopt;
  }
}

}  // namespace tutti::launch
