// Whatever the bytes, scanning a journal neither crashes nor leaves the buffer, and the good part
// is good again when scanned alone.
#include <cstdlib>

#include "tutti/parallel/folder/journal.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace tutti::parallel;
  std::string bytes("TUTTIJ1\n\x07\0\0\0\0\0\0\0", 16);
  bytes.append(reinterpret_cast<const char*>(data), size);
  std::size_t count = 0;
  std::size_t payload = 0;
  const std::uint64_t good =
      scan_journal(bytes, 7, [&](const JournalRecord& record, std::uint64_t) {
        ++count;
        payload += record.payload.size();
      });
  if (good > bytes.size() || payload > bytes.size()) std::abort();
  std::size_t again = 0;
  scan_journal(std::string_view(bytes).substr(0, good), 7,
               [&](const JournalRecord&, std::uint64_t) { ++again; });
  if (again != count) std::abort();
  return 0;
}
