// The last words of a log. Internal to the room.
#pragma once

#include <filesystem>
#include <string>

namespace tutti::parallel {

// At most 2000 bytes, without newlines at the end; empty when there is no such file.
std::string log_tail(const std::filesystem::path& log);

}  // namespace tutti::parallel
