// Where rank 0 can be reached, and how the others learn it.
//
// The server binds port 0 and publishes its addresses with a fresh secret: in our own agent's store
// where there is one, else in a 0600 file in the run folder, named after job, step and restart
// count so that a requeued job never reads its predecessor's. A fixed port (15000 + job id and the
// like) collides; a published one cannot. MASTER_ADDR and MASTER_PORT override the file.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tutti/launch/rank.h"

namespace tutti::launch {

struct Publication {
  std::vector<std::string> hosts;  // in the order to try
  int port = 0;
  std::string secret;

  std::string to_text() const;
  // Empty when the text is none (half-written, another version).
  static std::optional<Publication> parse(const std::string& text);
};

// RUN_FOLDER/.rendezvous/SERVICE-RUN_ID-rN.json
std::filesystem::path publication_path(const std::filesystem::path& run_folder,
                                       const std::string& service, const RankContext& rank);
void write_publication(const std::filesystem::path& path, const Publication& publication);
// Empty when there is none yet.
std::optional<Publication> read_publication(const std::filesystem::path& path);

}  // namespace tutti::launch
