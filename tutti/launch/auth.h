// Proof of a shared secret without sending it: HMAC-SHA256 over both sides' nonces.
//
// The secret itself travels only through 0600 files or the environment of our own children. It
// keeps strangers and stale ranks out; it does not encrypt (see docs/launch.md).
// The mathematics is libsodium's.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace tutti::launch {

std::string hmac_sha256(std::string_view key, std::string_view message);  // 32 raw bytes
std::string random_bytes(std::size_t n);                                  // from the kernel
std::string to_hex(std::string_view bytes);
// Takes the same time wherever the first difference is.
bool equal_in_constant_time(std::string_view a, std::string_view b) noexcept;

// The content of a secret file, trimmed. Throws ConfigError when others may read it or it is empty,
// IoError when it cannot be read.
std::string read_secret_file(const std::filesystem::path& path);

}  // namespace tutti::launch
