#include "fuzz/data_readers.h"
#include "tutti/data/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return tutti::fuzz::run(data, size, [](std::string_view bytes) {
    if (bytes.starts_with("{"))
      tutti::data::parse_jsonl_manifest(bytes, "fuzz", "/root");
    else
      tutti::data::parse_tsv_manifest(bytes, "fuzz", "/root");
  });
}
