// Reading and writing .safetensors files: 8 bytes of header length, a JSON header, raw tensors.
//
//   FileSum sum = write_safetensors("model.safetensors", tensors, {{"format", "pt"}});
//   TensorMap again = read_safetensors("model.safetensors", sum.crc32c);
//
// Files are what the Python package reads and writes: names sorted, data contiguous, no holes. A
// header of a file from elsewhere is not trusted: every offset is checked before it is used.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/core/file.h"

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

// What a header says of one tensor.
struct TensorSpec {
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> shape;
  std::int64_t numel() const;
  std::uint64_t num_bytes() const;
};
using TensorSpecs = std::map<std::string, TensorSpec>;

// Where everything lies in a file of these tensors, known before any of them is written: so several
// processes can write one file, and files larger than memory can be written.
class SafetensorsLayout {
 public:
  explicit SafetensorsLayout(TensorSpecs specs,
                             const std::map<std::string, std::string>& metadata = {});
  const TensorSpecs& specs() const { return specs_; }
  const std::string& head() const { return head_; }       // the file's first bytes
  std::uint64_t offset(const std::string& name) const;    // in the file
  std::uint64_t num_bytes() const { return num_bytes_; }  // of the file

 private:
  TensorSpecs specs_;
  std::map<std::string, std::uint64_t> offsets_;
  std::string head_;
  std::uint64_t num_bytes_ = 0;
};

// A file by parts: opened and checked once, tensors or ranges of them read when asked for.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  const TensorSpecs& specs() const { return specs_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  at::Tensor read(const std::string& name) const;
  // Elements start .. start + numel, flat.
  at::Tensor read(const std::string& name, std::int64_t start, std::int64_t numel) const;

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  TensorSpecs specs_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, std::uint64_t> offsets_;
};

// Writes a file tensor by tensor: `load` gives each when its turn comes. Writes `path` in place and
// fsyncs it, as write_safetensors.
FileSum stream_safetensors(const std::filesystem::path& path, const SafetensorsLayout& layout,
                           const std::function<at::Tensor(const std::string& name)>& load);

// Throws IoError if it cannot be read, DataError if it is truncated, malformed or (when
// `expected_crc32c` is given) changed.
TensorMap read_safetensors(const std::filesystem::path& path,
                           std::optional<std::uint32_t> expected_crc32c = std::nullopt);

// Throws DataError if the file's checksum is another one. Reads it once, in small pieces.
void check_file_crc32c(const std::filesystem::path& path, std::uint32_t expected);

// The format's names: "F32", "BF16", "I64", ... Throws DataError for types it has no name for.
std::string safetensors_type(at::ScalarType type);
at::ScalarType scalar_type_of(const std::string& safetensors_name);

}  // namespace tutti::trainer
