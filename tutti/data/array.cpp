#include "tutti/data/array.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string>

namespace tutti::data {

std::size_t dtype_size(DType dtype) noexcept {
  switch (dtype) {
    case DType::kUint8:
      return 1;
    case DType::kInt16:
      return 2;
    case DType::kInt32:
    case DType::kFloat32:
      return 4;
    case DType::kInt64:
    case DType::kFloat64:
      return 8;
  }
  return 0;
}

std::string_view dtype_name(DType dtype) noexcept {
  switch (dtype) {
    case DType::kUint8:
      return "uint8";
    case DType::kInt16:
      return "int16";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kFloat32:
      return "float32";
    case DType::kFloat64:
      return "float64";
  }
  return "?";
}

std::shared_ptr<void> allocate_plain(std::size_t num_bytes) {
  constexpr std::size_t kAlign = 64;
  void* memory =
      std::aligned_alloc(kAlign, std::max(kAlign, (num_bytes + kAlign - 1) / kAlign * kAlign));
  if (memory == nullptr) throw std::bad_alloc();
  return {memory, std::free};
}

Array Array::make(DType dtype, std::vector<std::int64_t> shape, const Allocator& allocate) {
  Array array;
  array.dtype = dtype;
  array.shape = std::move(shape);
  array.bytes = allocate(array.num_bytes());
  return array;
}

std::int64_t Array::size() const noexcept {
  std::int64_t product = 1;
  for (const auto dim : shape) product *= dim;
  return bytes || !shape.empty() ? product : 0;
}

void Array::throw_wrong_type(DType asked) const {
  throw InternalError("array of " + std::string(dtype_name(dtype)) + " read as " +
                      std::string(dtype_name(asked)));
}

}  // namespace tutti::data
