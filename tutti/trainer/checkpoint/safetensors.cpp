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
#include <tuple>

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

std::int64_t TensorSpec::numel() const { return c10::multiply_integers(shape); }

std::uint64_t TensorSpec::num_bytes() const {
  return static_cast<std::uint64_t>(numel()) * c10::elementSize(type);
}

SafetensorsLayout::SafetensorsLayout(TensorSpecs specs,
                                     const std::map<std::string, std::string>& metadata)
    : specs_(std::move(specs)) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const auto& [name, spec] : specs_) {
    offsets_[name] = offset;
    header[name] = {{"dtype", safetensors_type(spec.type)},
                    {"shape", spec.shape},
                    {"data_offsets", {offset, offset + spec.num_bytes()}}};
    offset += spec.num_bytes();
  }
  std::string text = header.dump();
  // Padded: keeps tensors aligned for readers that map the file.
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  head_.assign(reinterpret_cast<const char*>(&length), sizeof(length));
  head_ += text;
  for (auto& [name, begin] : offsets_) begin += head_.size();
  num_bytes_ = head_.size() + offset;
}

std::uint64_t SafetensorsLayout::offset(const std::string& name) const { return offsets_.at(name); }

FileSum stream_safetensors(const std::filesystem::path& path, const SafetensorsLayout& layout,
                           const std::function<at::Tensor(const std::string& name)>& load) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd) throw_errno("cannot create " + path.string(), errno);
  FileSum sum;
  const auto put = [&](std::string_view bytes) {
    write_all(fd.get(), bytes, path);
    sum.crc32c = crc32c(bytes, sum.crc32c);
    sum.num_bytes += bytes.size();
  };
  put(layout.head());
  for (const auto& [name, spec] : layout.specs()) {
    const at::Tensor tensor = load(name).detach().contiguous();
    if (tensor.scalar_type() != spec.type || tensor.sizes() != at::IntArrayRef(spec.shape))
      throw InternalError(fmt::format("{}: '{}' is not as announced", path.string(), name));
    put({static_cast<const char*>(tensor.data_ptr()), spec.num_bytes()});
  }
  fsync_file(fd.get(), path);
  return sum;
}

FileSum write_safetensors(const std::filesystem::path& path, const TensorMap& tensors,
                          const std::map<std::string, std::string>& metadata) {
  TensorSpecs specs;
  for (const auto& [name, tensor] : tensors)
    specs[name] = {tensor.scalar_type(), tensor.sizes().vec()};
  return stream_safetensors(path, SafetensorsLayout(std::move(specs), metadata),
                            [&](const std::string& name) { return tensors.at(name); });
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (!fd_) throw_errno("cannot open " + path.string(), errno);
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) throw_errno("cannot read " + path.string(), errno);
  const auto file_bytes = static_cast<std::uint64_t>(info.st_size);
  std::uint64_t length = 0;
  if (file_bytes < sizeof(length)) throw DataError(path.string() + ": truncated");
  read_exactly(fd_.get(), &length, sizeof(length), path);
  if (length > kMaxHeader || length > file_bytes - sizeof(length))
    throw DataError(fmt::format("{}: truncated or not a safetensors file (header of {} bytes)",
                                path.string(), length));
  std::string text(length, '\0');
  read_exactly(fd_.get(), text.data(), length, path);
  const Json header = parse_json(text, path.string());
  if (!header.is_object()) throw DataError(path.string() + ": the header is not an object");
  const std::uint64_t data_begin = sizeof(length) + length;
  const std::uint64_t data_bytes = file_bytes - data_begin;
  std::vector<Entry> entries;
  for (const auto& [name, json] : header.items()) {
    if (name != "__metadata__")
      entries.push_back(parse_entry(name, json, data_bytes, path.string()));
    else if (json.is_object())
      for (const auto& [key, value] : json.items())
        if (value.is_string()) metadata_[key] = value.get<std::string>();
  }
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) {  // empty tensors before what starts there
              return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
            });
  std::uint64_t position = 0;
  for (Entry& entry : entries) {
    if (entry.begin != position)
      throw DataError(fmt::format("{}: tensor '{}' starts at {}, expected {}", path.string(),
                                  entry.name, entry.begin, position));
    position = entry.end;
    offsets_[entry.name] = data_begin + entry.begin;
    specs_[entry.name] = {entry.type, std::move(entry.shape)};
  }
  if (position != data_bytes)
    throw DataError(
        fmt::format("{}: {} bytes after the last tensor", path.string(), data_bytes - position));
}

at::Tensor SafetensorsFile::read(const std::string& name, std::int64_t start,
                                 std::int64_t numel) const {
  const TensorSpec& spec = specs_.at(name);
  if (start < 0 || numel < 0 || start > spec.numel() - numel)
    throw InternalError(
        fmt::format("{}: '{}' has no elements {}..{}", path_.string(), name, start, start + numel));
  at::Tensor tensor = at::empty({numel}, at::TensorOptions().dtype(spec.type));
  const auto size = c10::elementSize(spec.type);
  const auto begin = offsets_.at(name) + static_cast<std::uint64_t>(start) * size;
  if (::lseek(fd_.get(), static_cast<off_t>(begin), SEEK_SET) < 0)
    throw_errno("cannot read " + path_.string(), errno);
  read_exactly(fd_.get(), tensor.data_ptr(), static_cast<std::uint64_t>(numel) * size, path_);
  return tensor;
}

at::Tensor SafetensorsFile::read(const std::string& name) const {
  const TensorSpec& spec = specs_.at(name);
  return read(name, 0, spec.numel()).view(spec.shape);
}

std::uint32_t file_crc32c(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw_errno("cannot open " + path.string(), errno);
  std::vector<char> buffer(1 << 20);
  std::uint32_t crc = 0;
  while (true) {
    const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno("cannot read " + path.string(), errno);
    if (got == 0) return crc;
    crc = crc32c({buffer.data(), static_cast<std::size_t>(got)}, crc);
  }
}

void check_file_crc32c(const std::filesystem::path& path, std::uint32_t expected) {
  const std::uint32_t crc = file_crc32c(path);
  if (crc != expected)
    throw DataError(fmt::format("{}: checksum {:08x}, expected {:08x}: the file was damaged",
                                path.string(), crc, expected));
}

TensorMap read_safetensors(const std::filesystem::path& path,
                           std::optional<std::uint32_t> expected_crc32c) {
  const SafetensorsFile file(path);
  TensorMap tensors;
  for (const auto& [name, spec] : file.specs()) tensors.emplace(name, file.read(name));
  if (expected_crc32c) check_file_crc32c(path, *expected_crc32c);
  return tensors;
}

}  // namespace tutti::trainer
