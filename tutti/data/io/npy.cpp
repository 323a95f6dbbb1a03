#include "tutti/data/io/npy.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstring>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"

namespace tutti::data {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

struct TypeCode {
  std::string_view code;
  DType dtype;
};
constexpr std::array kTypes = {TypeCode{"|u1", DType::kUint8},   TypeCode{"<i2", DType::kInt16},
                               TypeCode{"<i4", DType::kInt32},   TypeCode{"<i8", DType::kInt64},
                               TypeCode{"<f4", DType::kFloat32}, TypeCode{"<f8", DType::kFloat64}};

// The value after 'key': in the header's Python dict, up to the comma or bracket that ends it.
std::string_view dict_value(std::string_view header, std::string_view key,
                            const std::string& name) {
  const std::size_t at = header.find(fmt::format("'{}'", key));
  const std::size_t colon = at == std::string_view::npos ? at : header.find(':', at);
  if (colon == std::string_view::npos)
    throw DataError(fmt::format("{}: the npy header has no '{}'", name, key));
  std::string_view rest = trim(header.substr(colon + 1));
  const bool tuple = rest.starts_with('(');
  const std::size_t end = tuple ? rest.find(')') : rest.find_first_of(",}");
  if (end == std::string_view::npos)
    throw DataError(fmt::format("{}: the npy header is damaged at '{}'", name, key));
  return trim(rest.substr(tuple ? 1 : 0, tuple ? end - 1 : end));
}

// Fortran order to C order.
Array transposed(const Array& from) {
  Array to = Array::make(from.dtype, from.shape);
  const std::size_t rank = from.shape.size();
  const std::size_t width = dtype_size(from.dtype);
  std::vector<std::int64_t> at(rank, 0);
  for (std::int64_t i = 0; i < from.size(); ++i) {  // i counts the first dimension fastest
    std::int64_t place = 0;
    for (std::size_t d = 0; d < rank; ++d) place = place * from.shape[d] + at[d];
    std::memcpy(static_cast<char*>(to.bytes.get()) + static_cast<std::size_t>(place) * width,
                static_cast<const char*>(from.bytes.get()) + static_cast<std::size_t>(i) * width,
                width);
    for (std::size_t d = 0; d < rank && ++at[d] == from.shape[d]; ++d) at[d] = 0;
  }
  return to;
}

}  // namespace

std::string encode_npy(const Array& array) {
  std::string_view code;
  for (const TypeCode& type : kTypes)
    if (type.dtype == array.dtype) code = type.code;
  std::string shape;
  for (const auto dim : array.shape) shape += fmt::format("{}, ", dim);
  if (array.shape.size() > 1)
    shape.resize(shape.size() - 2);
  else if (array.shape.size() == 1)
    shape.pop_back();
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", code, shape);
  // Data begins at a multiple of 64, the header ends with a newline.
  const std::size_t total = (10 + header.size() + 1 + 63) / 64 * 64;
  header.append(total - 10 - header.size() - 1, ' ');
  header += '\n';
  std::string out(kMagic);
  out += {'\x01', '\x00'};
  out += static_cast<char>(header.size() & 0xff);
  out += static_cast<char>(header.size() >> 8);
  out += header;
  if (array.num_bytes() > 0)
    out.append(static_cast<const char*>(array.bytes.get()), array.num_bytes());
  return out;
}

Array parse_npy(std::string_view bytes, const std::string& name) {
  if (bytes.size() < 10 || !bytes.starts_with(kMagic)) throw DataError(name + ": not an npy file");
  const auto byte = [&](std::size_t i) {
    return static_cast<std::size_t>(static_cast<unsigned char>(bytes[i]));
  };
  const std::size_t version = byte(6);
  if (version < 1 || version > 3)
    throw DataError(fmt::format("{}: npy version {}, expected 1 to 3", name, version));
  const std::size_t prefix = version == 1 ? 10 : 12;
  if (bytes.size() < prefix) throw DataError(name + ": the npy header is cut short");
  std::size_t size = byte(8) | byte(9) << 8;
  if (version > 1) size |= byte(10) << 16 | byte(11) << 24;
  if (size > bytes.size() - prefix) throw DataError(name + ": the npy header is cut short");
  const std::string_view header = bytes.substr(prefix, size);

  std::string_view descr = dict_value(header, "descr", name);
  if (descr.size() >= 2 && (descr.front() == '\'' || descr.front() == '"'))
    descr = descr.substr(1, descr.size() - 2);
  const TypeCode* found = nullptr;
  for (const TypeCode& type : kTypes)
    if (type.code == descr) found = &type;
  if (found == nullptr)
    throw DataError(
        fmt::format("{}: npy type '{}', expected one of u1, i2, i4, i8, f4, f8 (little-endian)",
                    name, descr),
        "convert it with numpy's astype");
  const std::string_view order = dict_value(header, "fortran_order", name);
  if (order != "True" && order != "False")
    throw DataError(fmt::format("{}: npy fortran_order '{}'", name, order));

  std::vector<std::int64_t> shape;
  std::uint64_t count = 1;
  for (const auto& part : split(dict_value(header, "shape", name), ',')) {
    const std::string_view text = trim(part);
    if (text.empty()) continue;
    std::uint64_t dim = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), dim);
    if (status != std::errc{} || end != text.data() + text.size() || dim > bytes.size())
      throw DataError(fmt::format("{}: npy shape has '{}'", name, text));
    shape.push_back(static_cast<std::int64_t>(dim));
    count *= dim;
    // Checked at each step, so that the product cannot overflow.
    if (count > bytes.size() || shape.size() > 32)
      throw DataError(name + ": npy shape is larger than the file");
  }
  Array array = Array::make(found->dtype, shape);
  const std::string_view data = bytes.substr(prefix + size);
  if (data.size() < array.num_bytes())
    throw DataError(fmt::format("{}: cut short: {} of {} bytes are there", name, data.size(),
                                array.num_bytes()));
  if (array.num_bytes() > 0) std::memcpy(array.bytes.get(), data.data(), array.num_bytes());
  return order == "True" && shape.size() > 1 ? transposed(array) : array;
}

void write_npy(const std::filesystem::path& file, const Array& array) {
  write_file_atomic(file, encode_npy(array));
}

Array read_npy(const std::filesystem::path& file) {
  return parse_npy(read_file(file), file.string());
}

std::vector<double> to_doubles(const Array& array) {
  std::vector<double> out(static_cast<std::size_t>(array.size()));
  const auto copy = [&](const auto* data) { std::copy(data, data + out.size(), out.begin()); };
  switch (array.dtype) {
    case DType::kUint8:
      copy(array.data<std::uint8_t>());
      break;
    case DType::kInt16:
      copy(array.data<std::int16_t>());
      break;
    case DType::kInt32:
      copy(array.data<std::int32_t>());
      break;
    case DType::kInt64:
      copy(array.data<std::int64_t>());
      break;
    case DType::kFloat32:
      copy(array.data<float>());
      break;
    case DType::kFloat64:
      copy(array.data<double>());
      break;
  }
  return out;
}

}  // namespace tutti::data
