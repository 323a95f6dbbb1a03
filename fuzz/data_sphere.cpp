#include "fuzz/data_readers.h"
#include "tutti/data/io/sphere.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return tutti::fuzz::run(data, size, [](std::string_view bytes) {
    const auto header = tutti::data::parse_sphere_header(bytes, "fuzz");
    tutti::data::decode_sphere_samples(header, bytes.substr(header.data_offset));
  });
}
