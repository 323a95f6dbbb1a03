#include "tutti/speech/loading/npz.h"

#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"

namespace tutti::speech {

namespace {

// Little-endian fields of a byte string, with the bounds checked.
class Bytes {
 public:
  Bytes(std::string_view data, std::string where) : data_(data), where_(std::move(where)) {}
  std::string_view slice(std::uint64_t offset, std::uint64_t count) const {
    if (offset > data_.size() || count > data_.size() - offset) fail("it is cut short");
    return data_.substr(offset, count);
  }
  std::uint64_t number(std::uint64_t offset, int width) const {
    std::uint64_t value = 0;
    const std::string_view bytes = slice(offset, width);
    for (int i = width - 1; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    return value;
  }
  std::uint64_t size() const { return data_.size(); }
  [[noreturn]] void fail(const std::string& what, const std::string& fix = {}) const {
    throw DataError(where_ + ": not a usable .npz archive: " + what, fix);
  }

 private:
  std::string_view data_;
  std::string where_;
};

constexpr std::array<std::pair<const char*, at::ScalarType>, 6> kTypes = {{{"<f4", at::kFloat},
                                                                           {"<f8", at::kDouble},
                                                                           {"<i4", at::kInt},
                                                                           {"<i8", at::kLong},
                                                                           {"|u1", at::kByte},
                                                                           {"|b1", at::kBool}}};

// The value after 'key': in the header, which is the text of a Python dict.
std::string header_field(std::string_view header, const std::string& key, const Bytes& bytes) {
  const std::size_t at = header.find("'" + key + "':");
  if (at == std::string_view::npos) bytes.fail("its header has no '" + key + "'");
  const std::string_view rest = trim(header.substr(at + key.size() + 3));
  if (rest.empty()) bytes.fail("its header ends after '" + key + "'");
  const std::size_t end = rest[0] == '(' ? rest.find(')') + 1 : rest.find_first_of(",}");
  return std::string(rest.substr(0, end));
}

torch::Tensor parse_npy(std::string_view entry, const std::string& where) {
  const Bytes bytes(entry, where);
  if (bytes.slice(0, 6) != std::string_view("\x93NUMPY", 6)) bytes.fail("no NumPy array in it");
  const int width = bytes.number(6, 1) == 1 ? 2 : 4;
  const std::uint64_t header_size = bytes.number(8, width);
  const std::string_view header = bytes.slice(8 + width, header_size);
  if (header_field(header, "fortran_order", bytes) != "False") bytes.fail("it is in Fortran order");
  const std::string type_name = header_field(header, "descr", bytes);
  for (const auto& [name, type] : kTypes) {
    if (type_name != "'" + std::string(name) + "'") continue;
    std::vector<std::int64_t> shape;
    std::uint64_t count = 1;
    for (const std::string& part : split(header_field(header, "shape", bytes), ',')) {
      std::string digits;
      for (const char c : part)
        if (c != '(' && c != ')' && c != ' ') digits.push_back(c);
      if (digits.empty()) continue;
      if (digits.size() > 9 || digits.find_first_not_of("0123456789") != std::string::npos)
        bytes.fail("its shape is impossible");
      shape.push_back(std::stoll(digits));
      count *= static_cast<std::uint64_t>(shape.back());
      if (count > bytes.size()) bytes.fail("its shape is larger than its data");
    }
    const std::string_view data =
        bytes.slice(8 + width + header_size, count * c10::elementSize(type));
    torch::Tensor tensor = torch::empty(shape, type);
    std::memcpy(tensor.data_ptr(), data.data(), data.size());
    return tensor;
  }
  bytes.fail("its type " + type_name + " is not supported", "save it as float32 or float64");
}

std::uint32_t zip_crc32(std::string_view data) {
  static const std::array<std::uint32_t, 256> kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value & 1 ? 0xEDB88320U ^ (value >> 1) : value >> 1;
      table[i] = value;
    }
    return table;
  }();
  std::uint32_t crc = ~0U;
  for (const char c : data) crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

void append(std::string& out, std::uint64_t value, int width) {
  for (int i = 0; i < width; ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

std::string npy_bytes(const std::string& name, const torch::Tensor& array) {
  const torch::Tensor tensor = array.detach().to(torch::kCPU).contiguous();
  std::string type_name;
  for (const auto& [text, type] : kTypes)
    if (tensor.scalar_type() == type) type_name = text;
  if (type_name.empty())
    throw InternalError("write_npz: " + name + " has a type that .npz files of ours do not hold");
  std::string shape = "(";
  for (const std::int64_t n : tensor.sizes()) shape += std::to_string(n) + ",";
  std::string header =
      "{'descr': '" + type_name + "', 'fortran_order': False, 'shape': " + shape + "), }";
  header.append(63 - (10 + header.size()) % 64, ' ')
      .push_back('\n');  // data begins at a multiple of 64
  std::string out("\x93NUMPY\x01\x00", 8);
  append(out, header.size(), 2);
  out += header;
  out.append(static_cast<const char*>(tensor.data_ptr()), tensor.numel() * tensor.element_size());
  return out;
}

}  // namespace

std::map<std::string, torch::Tensor> read_npz(const std::filesystem::path& path) {
  const std::string content = read_file(path);
  const Bytes bytes(content, path.string());
  // The directory is at the end, behind it a record of 22 bytes (and a comment that numpy leaves
  // out).
  if (content.size() < 22 || bytes.number(content.size() - 22, 4) != 0x06054b50)
    bytes.fail("no zip directory");
  const std::uint64_t count = bytes.number(content.size() - 12, 2);
  std::uint64_t at = bytes.number(content.size() - 6, 4);
  std::map<std::string, torch::Tensor> arrays;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (bytes.number(at, 4) != 0x02014b50) bytes.fail("its directory is damaged");
    if (bytes.number(at + 10, 2) != 0)
      bytes.fail("it is compressed", "write it with numpy.savez instead of savez_compressed");
    const std::uint64_t size = bytes.number(at + 20, 4), name_size = bytes.number(at + 28, 2);
    const std::uint64_t local = bytes.number(at + 42, 4);
    std::string name(bytes.slice(at + 46, name_size));
    const std::uint64_t data =
        local + 30 + bytes.number(local + 26, 2) + bytes.number(local + 28, 2);
    if (name.ends_with(".npy")) name.resize(name.size() - 4);
    const std::string_view entry = bytes.slice(data, size);
    if (zip_crc32(entry) != bytes.number(at + 16, 4))
      bytes.fail("'" + name + "' does not match its checksum");
    arrays[name] = parse_npy(entry, path.string() + ": " + name);
    at += 46 + name_size + bytes.number(at + 30, 2) + bytes.number(at + 32, 2);
  }
  return arrays;
}

void write_npz(const std::filesystem::path& path,
               const std::map<std::string, torch::Tensor>& arrays) {
  std::string out, directory;
  for (const auto& [name, array] : arrays) {
    const std::string entry = npy_bytes(name, array), file = name + ".npy";
    if (out.size() + entry.size() > 0xFFFFFFFFULL)
      throw InternalError("write_npz: more than 4 GiB");
    const std::uint64_t offset = out.size();
    std::string common;             // what the local header and the directory share
    append(common, 20, 2);          // version needed
    append(common, 0, 2);           // flags
    append(common, 0, 2);           // stored
    append(common, 0x00210000, 4);  // 1980-01-01: files compare byte for byte
    append(common, zip_crc32(entry), 4);
    append(common, entry.size(), 4);
    append(common, entry.size(), 4);
    append(common, file.size(), 2);
    append(common, 0, 2);  // extra field
    append(out, 0x04034b50, 4);
    out += common + file + entry;
    append(directory, 0x02014b50, 4);
    append(directory, 20, 2);
    directory += common;
    append(directory, 0, 2);  // comment
    append(directory, 0, 2);  // disk
    append(directory, 0, 2);  // internal attributes
    append(directory, 0, 4);  // external attributes
    append(directory, offset, 4);
    directory += file;
  }
  const std::uint64_t directory_offset = out.size();
  out += directory;
  append(out, 0x06054b50, 4);
  append(out, 0, 4);
  append(out, arrays.size(), 2);
  append(out, arrays.size(), 2);
  append(out, directory.size(), 4);
  append(out, directory_offset, 4);
  append(out, 0, 2);
  write_file_atomic(path, out);
}

}  // namespace tutti::speech
