#include "tutti/data/io/kaldi_matrix.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/data/io/npy.h"

namespace tutti::data {
namespace {

constexpr std::int64_t kMostCells = std::int64_t{1} << 31;  // a damaged header asks for more

// Bytes from front to back; numbers are little-endian, as Kaldi writes them on every machine we run
// on.
class Cursor {
 public:
  Cursor(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}
  std::string_view take(std::size_t count) {
    if (count > bytes_.size()) throw DataError(fmt::format("{}: the matrix is cut short", name_));
    const std::string_view out = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return out;
  }
  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  // Kaldi writes the size of an integer before it.
  std::int32_t sized_int() {
    if (take(1)[0] != 4) throw DataError(fmt::format("{}: not a Kaldi matrix", name_));
    return number<std::int32_t>();
  }

 private:
  std::string_view bytes_;
  const std::string& name_;
};

std::uint64_t cells(std::int64_t rows, std::int64_t columns, const std::string& name) {
  if (rows < 0 || columns < 0 || (columns > 0 && rows > kMostCells / columns))
    throw DataError(fmt::format("{}: a matrix of {} x {}", name, rows, columns));
  return static_cast<std::uint64_t>(rows * columns);
}

Array make(std::int64_t rows, std::int64_t columns, const std::string& name) {
  cells(rows, columns, name);
  return Array::make(DType::kFloat32, {rows, columns});
}

template <class T>
Array plain(Cursor& in, const std::string& name, bool vector = false) {
  const std::int32_t rows = in.sized_int(), columns = vector ? 1 : in.sized_int();
  Array out = make(rows, columns, name);
  if (vector) out.shape.pop_back();
  const std::string_view bytes = in.take(static_cast<std::size_t>(out.size()) * sizeof(T));
  for (std::int64_t i = 0; i < out.size(); ++i) {
    T value{};
    std::memcpy(&value, bytes.data() + static_cast<std::size_t>(i) * sizeof value, sizeof value);
    out.data<float>()[i] = static_cast<float>(value);
  }
  return out;
}

// Kind 1: a byte per cell between four percentiles of its column; 2: 16 bits, 3: 8 bits per cell,
// even between least and most.
Array compressed(Cursor& in, int kind, const std::string& name) {
  const auto least = in.number<float>(), range = in.number<float>();
  const auto rows = in.number<std::int32_t>(), columns = in.number<std::int32_t>();
  Array out = make(rows, columns, name);
  float* to = out.data<float>();
  if (kind == 2) {
    for (std::int64_t i = 0; i < out.size(); ++i)
      to[i] = least + range / 65535.0F * static_cast<float>(in.number<std::uint16_t>());
    return out;
  }
  if (kind == 3) {
    for (std::int64_t i = 0; i < out.size(); ++i)
      to[i] = least + range / 255.0F * static_cast<float>(in.number<std::uint8_t>());
    return out;
  }
  std::vector<std::array<float, 4>> marks(static_cast<std::size_t>(columns));
  for (auto& column : marks)
    for (float& mark : column)
      mark = least + range / 65535.0F * static_cast<float>(in.number<std::uint16_t>());
  for (std::int64_t c = 0; c < columns; ++c) {
    const auto& [low, quarter, most, high] = marks[static_cast<std::size_t>(c)];
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto v = static_cast<float>(in.number<std::uint8_t>());
      to[r * columns + c] = v <= 64    ? low + (quarter - low) * v / 64
                            : v <= 192 ? quarter + (most - quarter) * (v - 64) / 128
                                       : most + (high - most) * (v - 192) / 63;
    }
  }
  return out;
}

// The kind of matrix at the front: "FM", "DM", "CM", "CM2", "CM3".
std::string kind_of(Cursor& in, const std::string& name) {
  const std::string_view mark = in.take(2);
  if (mark != std::string_view("\0B", 2))
    throw DataError(name + ": not a binary Kaldi matrix",
                    "write it with copy-feats (without ark,t)");
  std::string kind(in.take(2));
  for (char c = in.take(1)[0]; c != ' ' && kind.size() < 4; c = in.take(1)[0]) kind += c;
  return kind;
}

// Bytes of the whole matrix that begins with `head`.
std::uint64_t size_of(std::string_view head, const std::string& name) {
  Cursor in(head, name);
  const std::string kind = kind_of(in, name);
  if (kind == "FM" || kind == "DM") {
    const std::int64_t rows = in.sized_int(), columns = in.sized_int();
    return 15 + cells(rows, columns, name) * (kind == "FM" ? sizeof(float) : sizeof(double));
  }
  if (kind == "FV" || kind == "DV")
    return 10 + cells(in.sized_int(), 1, name) * (kind == "FV" ? sizeof(float) : sizeof(double));
  in.take(8);
  const std::int64_t rows = in.number<std::int32_t>(), columns = in.number<std::int32_t>();
  const std::uint64_t count = cells(rows, columns, name);
  return 32 + 8 * static_cast<std::uint64_t>(columns) + count * (kind == "CM2" ? 2 : 1);
}

std::string read_at(int fd, std::uint64_t offset, std::uint64_t count, const std::string& file) {
  std::string bytes(count, '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n =
        ::pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw_errno("cannot read " + file, errno);
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

Array to_float32(Array array, const std::string& name) {
  if (array.shape.size() != 2)
    throw DataError(
        fmt::format("{}: {} dimensions, expected frames x features", name, array.shape.size()));
  if (array.dtype == DType::kFloat32) return array;
  const std::vector<double> values = to_doubles(array);
  Array out = Array::make(DType::kFloat32, array.shape);
  std::transform(values.begin(), values.end(), out.data<float>(),
                 [](double value) { return static_cast<float>(value); });
  return out;
}

// "a.ark:1234" -> {"a.ark", 1234}
std::pair<std::string, std::uint64_t> place_of(std::string_view entry) noexcept {
  const auto colon = entry.rfind(':');
  if (colon == std::string_view::npos || colon + 1 == entry.size()) return {"", 0};
  std::uint64_t offset = 0;
  const char* const end = entry.data() + entry.size();
  const auto [stop, error] = std::from_chars(entry.data() + colon + 1, end, offset);
  if (error != std::errc() || stop != end) return {"", 0};
  return {std::string(entry.substr(0, colon)), offset};
}

// Reads the one at "a.ark:1234".
Array read_kaldi_array(const std::string& entry,
                       Array (*parse)(std::string_view bytes, const std::string& name)) {
  const auto [file, offset] = place_of(entry);
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw_errno("cannot open " + file, errno);
  const std::string head = read_at(fd.get(), offset, 64, file);
  return parse(read_at(fd.get(), offset, size_of(head, entry), file), entry);
}

}  // namespace

bool is_matrix_name(std::string_view entry) noexcept {
  return entry.ends_with(".npy") || !place_of(entry).first.empty();
}

Array parse_kaldi_matrix(std::string_view bytes, const std::string& name) {
  Cursor in(bytes, name);
  const std::string kind = kind_of(in, name);
  if (kind == "FM") return plain<float>(in, name);
  if (kind == "DM") return plain<double>(in, name);
  if (kind == "CM") return compressed(in, 1, name);
  if (kind == "CM2") return compressed(in, 2, name);
  if (kind == "CM3") return compressed(in, 3, name);
  throw DataError(
      fmt::format("{}: got '{}', expected a matrix (FM, DM, CM, CM2, CM3)", name, kind));
}

Array read_matrix(const std::string& entry) {
  if (entry.ends_with(".npy")) return to_float32(read_npy(entry), entry);
  return read_kaldi_array(entry, parse_kaldi_matrix);
}

Array read_array(const std::string& entry) {
  if (entry.ends_with(".npy")) return read_npy(entry);
  return read_kaldi_array(entry, [](std::string_view bytes, const std::string& name) {
    Cursor in(bytes, name);
    const std::string kind = kind_of(in, name);
    if (kind == "FV") return plain<float>(in, name, /*vector=*/true);
    if (kind == "DV") return plain<double>(in, name, /*vector=*/true);
    return parse_kaldi_matrix(bytes, name);
  });
}

}  // namespace tutti::data
