// npz: a zip archive of npy members, stored without compression as numpy.savez does.
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <limits>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/data/io/npy.h"

namespace tutti::data {
namespace {

// Zip's CRC-32 (IEEE 802.3); our own formats use CRC-32C.
std::uint32_t zip_crc(std::string_view bytes) {
  static const auto table = [] {
    std::array<std::uint32_t, 256> t{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      t[i] = i;
      for (int bit = 0; bit < 8; ++bit)
        t[i] = (t[i] & 1) != 0 ? (t[i] >> 1) ^ 0xEDB88320U : t[i] >> 1;
    }
    return t;
  }();
  std::uint32_t crc = ~0U;
  for (const char c : bytes) crc = table[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

void put(std::string& out, std::uint64_t value, int num_bytes) {
  for (int i = 0; i < num_bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

std::uint64_t get(std::string_view bytes, std::size_t at, std::size_t num_bytes,
                  const std::string& name) {
  if (at > bytes.size() || num_bytes > bytes.size() - at)
    throw DataError(name + ": damaged npz (cut short)");
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < num_bytes; ++i)
    value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[at + i])) << (8 * i);
  return value;
}

constexpr std::uint32_t kLocal = 0x04034b50;
constexpr std::uint32_t kCentral = 0x02014b50;
constexpr std::uint32_t kEnd = 0x06054b50;
constexpr std::uint64_t kMax32 = 0xffffffff;
constexpr std::uint64_t kDate = 0x5021;  // 2020-01-01: equal content, equal bytes

// The fields that local and central headers share.
void put_common(std::string& out, std::string_view name, std::string_view data, std::uint32_t crc) {
  put(out, 20, 2);  // version needed
  put(out, 0, 2);   // flags
  put(out, 0, 2);   // stored
  put(out, 0, 2);
  put(out, kDate, 2);
  put(out, crc, 4);
  put(out, data.size(), 4);
  put(out, data.size(), 4);
  put(out, name.size(), 2);
  put(out, 0, 2);  // extra
}

struct Member {
  std::string name;
  std::uint64_t method = 0, crc = 0, size = 0, stored_size = 0, offset = 0;
};

// Sizes that do not fit 32 bits (and numpy's own habit of saying so anyway) are in the extra field.
void read_zip64(std::string_view extra, Member& member, const std::string& name) {
  for (std::size_t at = 0; at + 4 <= extra.size();) {
    const std::uint64_t id = get(extra, at, 2, name);
    const std::uint64_t size = get(extra, at + 2, 2, name);
    std::size_t field = at + 4;
    if (id == 1) {
      for (std::uint64_t* value : {&member.size, &member.stored_size, &member.offset}) {
        if (*value != kMax32) continue;
        *value = get(extra, field, 8, name);
        field += 8;
      }
      return;
    }
    at += 4 + size;
  }
}

}  // namespace

void write_npz(const std::filesystem::path& file,
               const std::vector<std::pair<std::string, Array>>& arrays) {
  std::string out;
  std::string directory;
  for (const auto& [key, array] : arrays) {
    const std::string name = key + ".npy";
    const std::string data = encode_npy(array);
    if (out.size() + data.size() > kMax32 / 2)
      throw DataError(file.string() + ": larger than 2 GiB, which npz files of ours are not");
    const std::uint32_t crc = zip_crc(data);
    put(directory, kCentral, 4);
    put(directory, 20, 2);
    put_common(directory, name, data, crc);
    put(directory, 0, 2);  // comment
    put(directory, 0, 2);  // disk
    put(directory, 0, 2);
    put(directory, 0600ULL << 16, 4);
    put(directory, out.size(), 4);
    directory += name;
    put(out, kLocal, 4);
    put_common(out, name, data, crc);
    out += name;
    out += data;
  }
  const std::uint64_t begin = out.size();
  out += directory;
  put(out, kEnd, 4);
  put(out, 0, 4);  // disks
  put(out, arrays.size(), 2);
  put(out, arrays.size(), 2);
  put(out, directory.size(), 4);
  put(out, begin, 4);
  put(out, 0, 2);  // comment
  write_file_atomic(file, out);
}

std::map<std::string, Array> parse_npz(std::string_view bytes, const std::string& name) {
  // The end record is last but for a comment of up to 64 KiB.
  const std::string mark("PK\x05\x06", 4);
  const std::size_t end = bytes.rfind(mark);
  if (end == std::string_view::npos || bytes.size() - end < 22)
    throw DataError(name + ": not an npz file (no zip directory)");
  const std::uint64_t count = get(bytes, end + 10, 2, name);
  std::uint64_t at = get(bytes, end + 16, 4, name);
  if (at == kMax32) throw DataError(name + ": npz files beyond 4 GiB are not read here");
  std::map<std::string, Array> arrays;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (get(bytes, at, 4, name) != kCentral)
      throw DataError(name + ": damaged npz (the directory does not add up)");
    Member member;
    member.method = get(bytes, at + 10, 2, name);
    member.crc = get(bytes, at + 16, 4, name);
    member.stored_size = get(bytes, at + 20, 4, name);
    member.size = get(bytes, at + 24, 4, name);
    const std::uint64_t name_size = get(bytes, at + 28, 2, name);
    const std::uint64_t extra_size = get(bytes, at + 30, 2, name);
    const std::uint64_t comment_size = get(bytes, at + 32, 2, name);
    member.offset = get(bytes, at + 42, 4, name);
    if (at + 46 + name_size + extra_size > bytes.size())
      throw DataError(name + ": damaged npz (cut short)");
    member.name = bytes.substr(at + 46, name_size);
    read_zip64(bytes.substr(at + 46 + name_size, extra_size), member, name);
    at += 46 + name_size + extra_size + comment_size;
    const std::string where = fmt::format("{}[{}]", name, member.name);
    if (member.method != 0 || member.size != member.stored_size)
      throw DataError(where + ": compressed", "write it with numpy.savez, not savez_compressed");
    if (get(bytes, member.offset, 4, where) != kLocal)
      throw DataError(where + ": damaged npz (no member there)");
    const std::uint64_t begin = member.offset + 30 + get(bytes, member.offset + 26, 2, where) +
                                get(bytes, member.offset + 28, 2, where);
    if (begin > bytes.size() || member.size > bytes.size() - begin)
      throw DataError(where + ": damaged npz (cut short)");
    const std::string_view data = bytes.substr(begin, member.size);
    if (zip_crc(data) != member.crc)
      throw DataError(where + ": damaged npz (the checksum does not match)");
    std::string key = member.name;
    if (key.ends_with(".npy")) key.resize(key.size() - 4);
    arrays.insert_or_assign(std::move(key), parse_npy(data, where));
  }
  return arrays;
}

std::map<std::string, Array> read_npz(const std::filesystem::path& file) {
  return parse_npz(read_file(file), file.string());
}

}  // namespace tutti::data
