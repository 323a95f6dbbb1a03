#include "fuzz/data_readers.h"
#include "tutti/data/io/archive.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return tutti::fuzz::run(
      data, size, [](std::string_view bytes) { tutti::data::parse_archive_record(bytes, "fuzz"); });
}
