#include "tutti/data/io/sphere.h"

#include <fmt/format.h>

#include <charconv>
#include <map>

#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::data {
namespace {

constexpr std::string_view kSphereMagic = "NIST_1A\n";
constexpr std::size_t kMaxHeader = 1 << 20;  // real ones have 1024 bytes
constexpr std::int64_t kMaxFrames = std::int64_t{1} << 46;

std::int64_t to_int(std::string_view text, const std::string& where) {
  std::int64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc{} || end != text.data() + text.size())
    throw DataError(fmt::format("{}: got '{}', expected an integer", where, text));
  return value;
}

float decode_ulaw(unsigned char code) {  // ITU-T G.711
  code = static_cast<unsigned char>(~code);
  const int magnitude = (((code & 0x0f) << 3) + 0x84) << ((code & 0x70) >> 4);
  return static_cast<float>((code & 0x80) != 0 ? 0x84 - magnitude : magnitude - 0x84) / 32768.0F;
}

float decode_alaw(unsigned char code) {
  code ^= 0x55;
  int magnitude = (code & 0x0f) << 4;
  const int exponent = (code & 0x70) >> 4;
  magnitude = exponent == 0 ? magnitude + 8 : (magnitude + 0x108) << (exponent - 1);
  return static_cast<float>((code & 0x80) != 0 ? magnitude : -magnitude) / 32768.0F;
}

}  // namespace

bool looks_like_sphere(std::string_view first_bytes) noexcept {
  return first_bytes.starts_with(kSphereMagic.substr(0, 7));
}

std::size_t sphere_header_size(std::string_view head, const std::string& name) {
  if (head.size() < 16 || !head.starts_with(kSphereMagic))
    throw DataError(name + ": not a NIST SPHERE file");
  const std::int64_t size = to_int(trim(head.substr(8, 8)), name + ": SPHERE header size");
  if (size < 16 || size > static_cast<std::int64_t>(kMaxHeader))
    throw DataError(fmt::format("{}: SPHERE header of {} bytes, expected 1024", name, size));
  return static_cast<std::size_t>(size);
}

SphereHeader parse_sphere_header(std::string_view head, const std::string& name) {
  SphereHeader header;
  header.data_offset = sphere_header_size(head, name);
  if (head.size() < header.data_offset)
    throw DataError(fmt::format("{}: the SPHERE header ends after {} of {} bytes", name,
                                head.size(), header.data_offset));
  std::map<std::string, std::string, std::less<>> fields;
  bool ended = false;
  for (const auto& raw : split(head.substr(16, header.data_offset - 16), '\n')) {
    const std::string_view line = trim(raw);
    if (line == "end_head") {
      ended = true;
      break;
    }
    const auto words = split_words(line);  // name, -i | -r | -sN, value
    if (words.size() >= 3) fields.insert_or_assign(words[0], words[2]);
  }
  if (!ended) throw DataError(name + ": the SPHERE header has no end_head");

  const auto integer = [&](const char* key, std::int64_t fallback, std::int64_t low,
                           std::int64_t high) {
    const auto found = fields.find(key);
    const std::int64_t value =
        found == fields.end() ? fallback : to_int(found->second, fmt::format("{}: {}", name, key));
    if (value < low || value > high)
      throw DataError(
          fmt::format("{}: {}: got {}, expected {} to {}", name, key, value, low, high));
    return value;
  };
  header.sample_rate = static_cast<int>(integer("sample_rate", 0, 1, 10'000'000));
  header.num_channels = static_cast<int>(integer("channel_count", 1, 1, 1024));
  header.num_frames = static_cast<std::uint64_t>(integer("sample_count", 0, 0, kMaxFrames));
  const std::int64_t width = integer("sample_n_bytes", 2, 1, 8);
  const auto coding_found = fields.find("sample_coding");
  const std::string coding = coding_found == fields.end() ? "pcm" : coding_found->second;
  const auto order_found = fields.find("sample_byte_format");
  const std::string order = order_found == fields.end() ? "01" : order_found->second;
  if (coding == "pcm" && width == 2 && (order == "01" || order == "10"))
    header.coding =
        order == "01" ? SphereHeader::Coding::kPcm16Little : SphereHeader::Coding::kPcm16Big;
  else if ((coding == "ulaw" || coding == "mu-law") && width == 1)
    header.coding = SphereHeader::Coding::kUlaw;
  else if (coding == "alaw" && width == 1)
    header.coding = SphereHeader::Coding::kAlaw;
  else if (coding.find("shorten") != std::string::npos)
    throw DataError(fmt::format("{}: compressed SPHERE ({})", name, coding),
                    "expand it with sph2pipe or w_decode first");
  else
    throw DataError(
        fmt::format("{}: SPHERE coding '{}' with {} bytes per sample in order '{}', expected pcm "
                    "(2 bytes, 01 or 10), ulaw or alaw",
                    name, coding, width, order));
  return header;
}

std::vector<float> decode_sphere_samples(const SphereHeader& header, std::string_view bytes) {
  const auto* in = reinterpret_cast<const unsigned char*>(bytes.data());
  std::vector<float> samples(bytes.size() / static_cast<std::size_t>(header.bytes_per_sample()));
  const auto pcm = [](unsigned low, unsigned high) {
    return static_cast<float>(static_cast<std::int16_t>(low | (high << 8))) / 32768.0F;
  };
  for (std::size_t i = 0; i < samples.size(); ++i) {
    switch (header.coding) {
      case SphereHeader::Coding::kPcm16Little:
        samples[i] = pcm(in[2 * i], in[2 * i + 1]);
        break;
      case SphereHeader::Coding::kPcm16Big:
        samples[i] = pcm(in[2 * i + 1], in[2 * i]);
        break;
      case SphereHeader::Coding::kUlaw:
        samples[i] = decode_ulaw(in[i]);
        break;
      case SphereHeader::Coding::kAlaw:
        samples[i] = decode_alaw(in[i]);
        break;
    }
  }
  return samples;
}

}  // namespace tutti::data
