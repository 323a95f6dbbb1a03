// For what is written every few seconds to tell others: as write_file_atomic (file.h), but nobody waits for
// the disk. Readers see the old file or the new one; after a power cut it may be empty.
#pragma once

#include <filesystem>
#include <string_view>

namespace tutti {

void replace_file(const std::filesystem::path& path, std::string_view content);

}  // namespace tutti
