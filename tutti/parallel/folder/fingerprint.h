// What decides the results of a run. Two runs with equal fingerprints may share a folder; else the
// second is refused, with what differs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/core/json.h"

namespace tutti::parallel {

// {"size": ..., "mtime_ns": ...} per file, for model files; throws IoError when one is missing.
Json file_stamps(const std::vector<std::string>& paths);
std::uint64_t fingerprint_hash(const Json& parts);
// "config.beam_size: was 5, is 8", one per difference, at most `limit` of them.
std::vector<std::string> fingerprint_differences(const Json& was, const Json& is,
                                                 std::size_t limit = 10);

}  // namespace tutti::parallel
