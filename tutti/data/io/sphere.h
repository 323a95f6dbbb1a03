// NIST SPHERE headers (AN4, WSJ, TIMIT): 1024 bytes or a multiple of text, then samples.
//
// PCM of 16 bits in either byte order, mu-law and A-law are read. Shortened files
// (`pcm,embedded-shorten-v2.00`) are refused with the name of the tool that expands them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tutti::data {

struct SphereHeader {
  enum class Coding { kPcm16Little, kPcm16Big, kUlaw, kAlaw };
  Coding coding = Coding::kPcm16Little;
  int sample_rate = 0;
  int num_channels = 1;
  std::uint64_t num_frames = 0;   // samples per channel; 0: not said
  std::uint64_t data_offset = 0;  // bytes of header
  int bytes_per_sample() const noexcept { return coding <= Coding::kPcm16Big ? 2 : 1; }
};

bool looks_like_sphere(std::string_view first_bytes) noexcept;
// The bytes of header, from the first 16 of the file. Throws DataError with `name`.
std::size_t sphere_header_size(std::string_view head, const std::string& name);
// `head` is the whole header. Throws DataError with `name`.
SphereHeader parse_sphere_header(std::string_view head, const std::string& name);

// Interleaved samples to [-1, 1). Whole samples only; a partial one at the end is ignored.
std::vector<float> decode_sphere_samples(const SphereHeader& header, std::string_view bytes);

}  // namespace tutti::data
