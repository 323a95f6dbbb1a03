// Bytes on the wire: length-prefixed frames with a type and a request id, and the two small classes
// that put values into a body and take them out again.
//
// Integers travel little-endian as they lie in memory: every machine Tutti runs on is. A Parser
// never reads past its body; garbage is a CommError, not undefined behaviour.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "tutti/core/error.h"

namespace tutti::launch {

struct Frame {
  std::uint8_t type = 0;
  std::uint64_t id = 0;
  std::string body;
};

// 4 bytes length of the body, 1 byte type, 3 bytes of kFrameMark, 8 bytes id.
constexpr std::size_t kFrameHeader = 16;
constexpr std::uint8_t kFrameMark[3] = {'T', 'u', '1'};  // also the protocol's version

class Builder {
 public:
  template <class T>
  Builder& put(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Builder& text(std::string_view value) {
    put(static_cast<std::uint32_t>(value.size()));
    bytes_.append(value);
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Parser {
 public:
  explicit Parser(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  T get() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text() { return std::string(take(get<std::uint32_t>())); }

 private:
  std::string_view take(std::size_t n) {
    if (n > bytes_.size()) throw CommError("a message from a peer is too short");
    const std::string_view part = bytes_.substr(0, n);
    bytes_.remove_prefix(n);
    return part;
  }
  std::string_view bytes_;
};

}  // namespace tutti::launch
