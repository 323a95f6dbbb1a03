// Byte counts and durations as people write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tutti {

// "32GB" (powers of 1000), "6.5GiB" (powers of 1024), "16G" (as GB), "4096"; spaces and case are
// free. Empty when it is none of these.
std::optional<std::uint64_t> parse_bytes(std::string_view text);
// Seconds from "90", "1.5", "04:00:00", "10:00" (minutes:seconds), "1-12:00:00" (days), "30m",
// "2h30m", "00:00:12:00" (Lightning's DD:HH:MM:SS). Empty when it is none of these, and where
// minutes or seconds after a colon are 60 or more.
std::optional<double> parse_duration(std::string_view text);

std::string format_bytes(std::uint64_t num_bytes);  // "1.5 GiB"
std::string format_duration(double seconds);        // "1.2 s", "3m05s", "2h10m", "3d04h"

}  // namespace tutti
