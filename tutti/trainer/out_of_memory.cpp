#include "tutti/trainer/out_of_memory.h"

#include <c10/util/Exception.h>

#include <new>
#include <string_view>

#include "tutti/core/error.h"

namespace tutti::trainer {

bool is_out_of_memory(const std::exception& error) noexcept {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
      dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr)
    return true;
  if (dynamic_cast<const Error*>(&error) != nullptr) return false;  // ours speak of other things
  // The CPU allocator and cuBLAS throw plain errors, which TorchScript wraps: words are all there is.
  const std::string_view words = error.what();
  for (const std::string_view sign : {"can't allocate memory", "not enough memory", "out of memory",
                                      "CUBLAS_STATUS_ALLOC_FAILED"})
    if (words.find(sign) != std::string_view::npos) return true;
  return false;
}

}  // namespace tutti::trainer
