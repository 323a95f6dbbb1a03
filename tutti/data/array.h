// A plain n-dimensional buffer: what the loader hands to the trainer, which wraps it without a
// copy.
//
//   Array speech = Array::make(DType::kFloat32, {4, 16000});
//   float* row = speech.data<float>() + 16000;
//   // trainer: torch::from_blob(a.bytes.get(), a.shape, [keep = a.bytes](void*) {}, options)
//
// Memory is row-major and shared: a copy of an Array shares its bytes (so a tensor made of it keeps
// them alive). Not synchronised: write before you share. Why not a tensor: this room is torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "tutti/core/error.h"

namespace tutti::data {

enum class DType { kUint8, kInt16, kInt32, kInt64, kFloat32, kFloat64 };

std::size_t dtype_size(DType dtype) noexcept;
std::string_view dtype_name(DType dtype) noexcept;  // "float32"

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, std::uint8_t>)
    return DType::kUint8;
  else if constexpr (std::is_same_v<T, std::int16_t>)
    return DType::kInt16;
  else if constexpr (std::is_same_v<T, std::int32_t>)
    return DType::kInt32;
  else if constexpr (std::is_same_v<T, std::int64_t>)
    return DType::kInt64;
  else if constexpr (std::is_same_v<T, float>)
    return DType::kFloat32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::kFloat64;
  else
    static_assert(!sizeof(T), "not an element type of Array");
}

// Where buffers come from: the trainer passes one that pins memory for CUDA copies.
using Allocator = std::function<std::shared_ptr<void>(std::size_t num_bytes)>;
std::shared_ptr<void> allocate_plain(std::size_t num_bytes);  // 64-byte aligned

struct Array {
  DType dtype = DType::kFloat32;
  std::vector<std::int64_t> shape;
  std::shared_ptr<void> bytes;

  // Uninitialised memory. REQUIRES: no negative dimension.
  static Array make(DType dtype, std::vector<std::int64_t> shape,
                    const Allocator& allocate = allocate_plain);
  template <class T>
  static Array from(const std::vector<T>& values) {
    Array array = make(dtype_of<T>(), {static_cast<std::int64_t>(values.size())});
    std::copy(values.begin(), values.end(), array.data<T>());
    return array;
  }

  std::int64_t size() const noexcept;  // number of elements
  std::size_t num_bytes() const noexcept {
    return static_cast<std::size_t>(size()) * dtype_size(dtype);
  }
  // Throws InternalError when T is not the element type.
  template <class T>
  T* data() const {
    if (dtype != dtype_of<T>()) throw_wrong_type(dtype_of<T>());
    return static_cast<T*>(bytes.get());
  }

 private:
  [[noreturn]] void throw_wrong_type(DType asked) const;
};

}  // namespace tutti::data
