#include "fuzz/data_readers.h"
#include "tutti/data/io/npy.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return tutti::fuzz::run(data, size, [](std::string_view bytes) {
    if (bytes.starts_with("\x93NUMPY"))
      tutti::data::parse_npy(bytes, "fuzz");
    else
      tutti::data::parse_npz(bytes, "fuzz");
  });
}
