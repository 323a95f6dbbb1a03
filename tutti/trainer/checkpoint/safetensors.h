// Reading and writing .safetensors files: 8 bytes of header length, a JSON header, raw tensors.
//
//   FileSum sum = write_safetensors("model.safetensors", tensors, {{"format", "pt"}});
//   auto tensors = read_safetensors("model.safetensors", sum.crc32c);
//
// Files are what the Python package reads and writes: names sorted, data contiguous, no holes. A
// header of a file from elsewhere is not trusted: every offset is checked before it is used.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace tutti::trainer {

using TensorMap = std::map<std::string, at::Tensor>;

struct FileSum {
  std::uint64_t num_bytes = 0;
  std::uint32_t crc32c = 0;
};

// Tensors must be on the CPU. Writes `path` in place and fsyncs it: put it into a temporary folder,
// or use write_file_atomic's habits around it. Throws IoError.
FileSum write_safetensors(const std::filesystem::path& path, const TensorMap& tensors,
                          const std::map<std::string, std::string>& metadata = {});

// Throws IoError if it cannot be read, DataError if it is truncated, malformed or (when
// `expected_crc32c` is given) changed.
TensorMap read_safetensors(const std::filesystem::path& path,
                           std::optional<std::uint32_t> expected_crc32c = std::nullopt);

// The format's names: "F32", "BF16", "I64", ... Throws DataError for types it has no name for.
std::string safetensors_type(at::ScalarType type);
at::ScalarType scalar_type_of(const std::string& safetensors_name);

}  // namespace tutti::trainer
