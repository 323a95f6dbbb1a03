// CRC-32C (Castagnoli), the checksum of every file format of ours. Uses SSE4.2 where the CPU has
// it.
#pragma once

#include <cstdint>
#include <string_view>

namespace tutti {

// Continues `crc` (0 to begin) over `data`. crc32c("123456789") == 0xE3069283.
std::uint32_t crc32c(std::string_view data, std::uint32_t crc = 0) noexcept;

// The checksum of A followed by B from theirs, without the bytes: several writers of one file.
std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b,
                             std::uint64_t num_bytes_b) noexcept;

}  // namespace tutti
