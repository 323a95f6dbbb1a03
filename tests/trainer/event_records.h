// TensorBoard's event files, record by record.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tutti/core/crc32c.h"

namespace tutti::trainer {

// Splits a TFRecord file into its payloads, checking both checksums of each record.
inline std::vector<std::string> records(const std::string& file) {
  const auto masked = [](const std::string& bytes) {
    const std::uint32_t crc = crc32c(bytes);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
  };
  std::vector<std::string> out;
  for (std::size_t at = 0; at < file.size();) {
    std::uint64_t length = 0;
    std::uint32_t length_crc = 0, data_crc = 0;
    std::memcpy(&length, file.data() + at, 8);
    std::memcpy(&length_crc, file.data() + at + 8, 4);
    EXPECT_EQ(length_crc, masked(file.substr(at, 8)));
    out.push_back(file.substr(at + 12, length));
    std::memcpy(&data_crc, file.data() + at + 12 + length, 4);
    EXPECT_EQ(data_crc, masked(out.back()));
    at += 16 + length;
  }
  return out;
}

}  // namespace tutti::trainer
