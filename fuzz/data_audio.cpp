#include "fuzz/data_readers.h"
#include "tutti/data/io/audio.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return tutti::fuzz::run(data, size, [](std::string_view bytes) {
    // libsndfile under our own reading: seeking, channel choice, resampling.
    tutti::data::decode_audio(bytes, "fuzz",
                              {.begin_s = 0.01, .end_s = 0.02, .sample_rate = 16000});
  });
}
