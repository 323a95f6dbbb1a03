// Whatever the bytes, decoding neither crashes nor over-allocates, and what decodes encodes back.
#include <cstdlib>

#include "tutti/parallel/wire/wire.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  namespace wire = tutti::parallel::wire;
  const auto message = wire::decode({reinterpret_cast<const char*>(data), size});
  if (!message) return 0;
  // Varints may be written in more bytes than needed, so bytes need not be equal; meanings must be.
  const std::string bytes = wire::encode(*message);
  const auto again = wire::decode(bytes);
  if (!again || wire::encode(*again) != bytes) std::abort();
  return 0;
}
