// The pickle machine behind read_pth: plain values and tensors, nothing that runs. Internal.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tutti::trainer {

struct PickleValue;
using PicklePtr =
    std::shared_ptr<PickleValue>;  // shared: the memo and several containers refer to one

struct PickleValue {
  enum class Kind {
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,
    kList,
    kTuple,
    kDict,
    kGlobal,
    kStorage,
    kTensor,
    kMark
  };
  Kind kind = Kind::kNone;
  std::int64_t integer = 0;                              // kBool, kInt
  double number = 0;                                     // kFloat
  std::string text;                                      // kText; kGlobal: "module name"
  std::vector<PicklePtr> items;                          // kList, kTuple
  std::vector<std::pair<PicklePtr, PicklePtr>> entries;  // kDict, in order
  at::Tensor tensor;  // kTensor; kStorage: flat, the whole storage
};

// `load_storage(key, type, numel)` gives the flat tensor of a storage of the archive.
using StorageLoader =
    std::function<at::Tensor(const std::string& key, at::ScalarType type, std::int64_t numel)>;

// Throws DataError beginning with `where`.
PicklePtr unpickle(std::string_view bytes, const StorageLoader& load_storage,
                   const std::string& where);

// The pickle of an ordered dict of tensors whose storages are "0", "1", ... in order of `tensors`.
std::string pickle_state_dict(const std::vector<std::pair<std::string, at::Tensor>>& tensors);

}  // namespace tutti::trainer
