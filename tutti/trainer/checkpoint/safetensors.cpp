#include "tutti/trainer/checkpoint/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "tutti/core/crc32c.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"

namespace tutti::trainer {
namespace {

constexpr std::uint64_t kMaxHeader = 100'000'000;  // the format's own limit

struct TypeName {
  at::ScalarType type;
  const char* name;
};
constexpr std::array<TypeName, 9> kTypes{{{at::kFloat, "F32"},
                                          {at::kDouble, "F64"},
                                          {at::kHalf, "F16"},
                                          {at::kBFloat16, "BF16"},
                                          {at::kLong, "I64"},
                                          {at::kInt, "I32"},
                                          {at::kShort, "I16"},
                                          {at::kChar, "I8"},
                                          {at::kByte, "U8"}}};

// Reads exactly `num_bytes` at the descriptor's position.
void read_exactly(int fd, void* out, std::uint64_t num_bytes, const std::filesystem::path& path) {
  auto* bytes = static_cast<char*>(out);
  while (num_bytes > 0) {
    const ssize_t got = ::read(fd, bytes, std::min<std::uint64_t>(num_bytes, 1u << 30));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno("cannot read " + path.string(), errno);
    if (got == 0) throw DataError(path.string() + ": truncated");
    bytes += got;
    num_bytes -= static_cast<std::uint64_t>(got);
  }
}

// One tensor of a header, checked.
struct Entry {
  std::string name;
  at::ScalarType type = at::kFloat;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

Entry parse_entry(const std::string& name, const Json& json, std::uint64_t data_bytes,
                  const std::string& where) {
  const auto bad = [&](const std::string& why) {
    return DataError(fmt::format("{}: tensor '{}': {}", where, name, why));
  };
  if (!json.is_object() || !json.contains("dtype") || !json.contains("shape") ||
      !json.contains("data_offsets") || !json["dtype"].is_string() || !json["shape"].is_array() ||
      !json["data_offsets"].is_array() || json["data_offsets"].size() != 2)
    throw bad("expected dtype, shape and data_offsets");
  Entry entry{.name = name, .type = scalar_type_of(json["dtype"].get<std::string>())};
  std::uint64_t numel = 1;
  for (const Json& size : json["shape"]) {
    if (!size.is_number_unsigned()) throw bad("the shape is not a list of sizes");
    const auto n = size.get<std::uint64_t>();
    if (n != 0 && numel > data_bytes / n) throw bad("larger than the file");
    numel *= n;
    entry.shape.push_back(static_cast<std::int64_t>(n));
  }
  for (const Json& offset : json["data_offsets"])
    if (!offset.is_number_unsigned()) throw bad("data_offsets are not numbers");
  entry.begin = json["data_offsets"][0].get<std::uint64_t>();
  entry.end = json["data_offsets"][1].get<std::uint64_t>();
  if (entry.begin > entry.end || entry.end > data_bytes ||
      entry.end - entry.begin != numel * c10::elementSize(entry.type))
    throw bad(
        fmt::format("offsets {}..{} do not fit its shape or the file", entry.begin, entry.end));
  return entry;
}

}  // namespace

std::string safetensors_type(at::ScalarType type) {
  if (type == at::kBool) return "BOOL";
  for (const auto& known : kTypes)
    if (known.type == type) return known.name;
  throw DataError(fmt::format("safetensors cannot hold tensors of type {}", c10::toString(type)));
}

at::ScalarType scalar_type_of(const std::string& name) {
  if (name == "BOOL") return at::kBool;
  for (const auto& known : kTypes)
    if (name == known.name) return known.type;
  throw DataError(fmt::format("safetensors: type '{}' is not supported", name));
}

FileSum write_safetensors(const std::filesystem::path& path, const TensorMap& tensors,
                          const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::vector<at::Tensor> ordered;
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    ordered.push_back(tensor.detach().contiguous());
    const auto num_bytes = static_cast<std::uint64_t>(tensor.numel()) * tensor.element_size();
    header[name] = {{"dtype", safetensors_type(tensor.scalar_type())},
                    {"shape", tensor.sizes().vec()},
                    {"data_offsets", {offset, offset + num_bytes}}};
    offset += num_bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8,
              ' ');  // keeps tensors aligned for readers that map the file

  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd) throw_errno("cannot create " + path.string(), errno);
  FileSum sum;
  const auto put = [&](std::string_view bytes) {
    write_all(fd.get(), bytes, path);
    sum.crc32c = crc32c(bytes, sum.crc32c);
    sum.num_bytes += bytes.size();
  };
  const std::uint64_t length = text.size();
  put({reinterpret_cast<const char*>(&length), sizeof(length)});
  put(text);
  for (const at::Tensor& tensor : ordered)
    put({static_cast<const char*>(tensor.data_ptr()),
         static_cast<std::size_t>(tensor.numel()) * tensor.element_size()});
  fsync_file(fd.get(), path);
  return sum;
}

TensorMap read_safetensors(const std::filesystem::path& path,
                           std::optional<std::uint32_t> expected_crc32c) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw_errno("cannot open " + path.string(), errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_errno("cannot read " + path.string(), errno);
  const auto file_bytes = static_cast<std::uint64_t>(info.st_size);
  std::uint64_t length = 0;
  if (file_bytes < sizeof(length)) throw DataError(path.string() + ": truncated");
  read_exactly(fd.get(), &length, sizeof(length), path);
  if (length > kMaxHeader || length > file_bytes - sizeof(length))
    throw DataError(fmt::format("{}: truncated or not a safetensors file (header of {} bytes)",
                                path.string(), length));
  std::string text(length, '\0');
  read_exactly(fd.get(), text.data(), length, path);
  const Json header = parse_json(text, path.string());
  if (!header.is_object()) throw DataError(path.string() + ": the header is not an object");

  const std::uint64_t data_bytes = file_bytes - sizeof(length) - length;
  std::vector<Entry> entries;
  for (const auto& [name, json] : header.items())
    if (name != "__metadata__")
      entries.push_back(parse_entry(name, json, data_bytes, path.string()));
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.begin < b.begin; });

  std::uint32_t crc = crc32c({reinterpret_cast<const char*>(&length), sizeof(length)});
  crc = crc32c(text, crc);
  TensorMap tensors;
  std::uint64_t position = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != position)
      throw DataError(fmt::format("{}: tensor '{}' starts at {}, expected {}", path.string(),
                                  entry.name, entry.begin, position));
    at::Tensor tensor = at::empty(entry.shape, at::TensorOptions().dtype(entry.type));
    read_exactly(fd.get(), tensor.data_ptr(), entry.end - entry.begin, path);
    crc = crc32c({static_cast<const char*>(tensor.data_ptr()), entry.end - entry.begin}, crc);
    position = entry.end;
    tensors.emplace(entry.name, std::move(tensor));
  }
  if (position != data_bytes)
    throw DataError(
        fmt::format("{}: {} bytes after the last tensor", path.string(), data_bytes - position));
  if (expected_crc32c && crc != *expected_crc32c)
    throw DataError(fmt::format("{}: checksum {:08x}, expected {:08x}: the file was damaged",
                                path.string(), crc, *expected_crc32c));
  return tensors;
}

}  // namespace tutti::trainer
