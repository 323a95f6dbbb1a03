#include "fuzz/data_readers.h"
#include "tutti/data/io/table_text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return tutti::fuzz::run(data, size, [](std::string_view bytes) {
    tutti::data::for_each_row(bytes, "fuzz", [](const tutti::data::Row& row) {
      tutti::data::parse_segment(row, "fuzz");
    });
  });
}
