// Files from the network, whole or not at all.
//
//   download({.url = "https://www.openslr.org/resources/12/dev-clean.tar.gz",
//             .md5 = "42e2234ba48799c1f50f24a7926300a1"}, "download/dev-clean.tar.gz");
//
// What has arrived is kept in FILE.part and continued, now and after a restart; the file gets its
// name only when its checksum is right. Uses the program curl, so that proxies and certificates are
// those of the machine. Throws DataError for a wrong checksum or an address that is not there,
// IoError when the network gave up.
#pragma once

#include <filesystem>
#include <string>

namespace tutti::systems {

struct Download {
  std::string url;
  std::string md5;       // empty: not checked
  int max_attempts = 8;  // broken connections in a row that brought nothing new
};

// Does nothing when `file` is there.
void download(const Download& what, const std::filesystem::path& file);

}  // namespace tutti::systems
