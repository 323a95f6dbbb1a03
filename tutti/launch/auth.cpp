#include "tutti/launch/auth.h"

#include <fmt/format.h>
#include <sodium.h>
#include <sys/stat.h>

#include <cerrno>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"

namespace tutti::launch {
namespace {

// libsodium's choice of code for this processor, and its random numbers. Threads may call it together.
void need_sodium() {
  if (sodium_init() < 0)
    throw InternalError("libsodium does not start (no random numbers from the kernel?)");
}

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

std::string hmac_sha256(std::string_view key, std::string_view message) {
  need_sodium();
  crypto_auth_hmacsha256_state state;
  std::string digest(crypto_auth_hmacsha256_BYTES, '\0');
  crypto_auth_hmacsha256_init(&state, bytes_of(key), key.size());
  crypto_auth_hmacsha256_update(&state, bytes_of(message), message.size());
  crypto_auth_hmacsha256_final(&state, reinterpret_cast<unsigned char*>(digest.data()));
  sodium_memzero(&state, sizeof state);
  return digest;
}

std::string random_bytes(std::size_t n) {
  need_sodium();
  std::string bytes(n, '\0');
  randombytes_buf(bytes.data(), n);
  return bytes;
}

std::string to_hex(std::string_view bytes) {
  std::string text(2 * bytes.size() + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes_of(bytes), bytes.size());
  text.pop_back();  // its NUL
  return text;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) noexcept {
  return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string read_secret_file(const std::filesystem::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0)
    throw_errno("cannot read the secret " + path.string(), errno);
  if ((info.st_mode & 077) != 0) {
    throw ConfigError(
        fmt::format("{}: the secret has mode {:04o}, expected 0600: others can read it",
                    path.string(), info.st_mode & 07777),
        "chmod 600 " + path.string());
  }
  std::string secret(trim(read_file(path)));
  if (secret.empty()) throw ConfigError(path.string() + ": the secret is empty");
  return secret;
}

}  // namespace tutti::launch
