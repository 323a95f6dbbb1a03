#include "tutti/trainer/checkpoint/pth.h"

#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/trainer/checkpoint/pickle.h"

namespace tutti::trainer {
namespace fs = std::filesystem;
namespace {

void collect(const PickleValue& value, const std::string& prefix, int depth, TensorMap& out) {
  if (depth > 64) throw DataError("nested too deeply");
  const auto child = [&](const std::string& name) {
    return prefix.empty() ? name : prefix + "." + name;
  };
  if (value.kind == PickleValue::Kind::kTensor) out[prefix] = value.tensor.clone();
  for (const auto& [key, item] : value.entries) {
    const bool is_number = key->kind == PickleValue::Kind::kInt;
    collect(*item, child(is_number ? std::to_string(key->integer) : key->text), depth + 1, out);
  }
  for (std::size_t i = 0; i < value.items.size(); ++i)
    collect(*value.items[i], child(std::to_string(i)), depth + 1, out);
}

// Training checkpoints keep the weights under one key, beside optimizer state.
const PickleValue& weights_of(const PickleValue& root) {
  for (const char* name : {"state_dict", "model_state_dict", "model", "module"})
    for (const auto& [key, item] : root.entries)
      if (key->text == name && item->kind == PickleValue::Kind::kDict) return *item;
  return root;
}

}  // namespace

TensorMap read_pth(const fs::path& path) {
  if (!fs::exists(path)) throw IoError("cannot open " + path.string() + ": no such file");
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> archive;
  try {
    archive = std::make_unique<caffe2::serialize::PyTorchStreamReader>(path.string());
  } catch (const std::exception&) {
    throw DataError(path.string() + ": not a zip archive of torch.save",
                    "files of PyTorch before 1.6: load and save them again with a newer one");
  }
  const auto record = [&](const std::string& name) {
    if (!archive->hasRecord(name))
      throw DataError(fmt::format("{}: '{}' is missing in the archive", path.string(), name));
    return archive->getRecord(name);
  };
  const auto [pickle, pickle_bytes] = record("data.pkl");
  std::map<std::string, at::Tensor> storages;  // tensors may share one
  const StorageLoader load = [&](const std::string& key, at::ScalarType type, std::int64_t numel) {
    at::Tensor& flat = storages[key];
    if (flat.defined()) return flat;
    const auto [data, num_bytes] = record("data/" + key);
    if (num_bytes / c10::elementSize(type) < static_cast<std::size_t>(numel))
      throw DataError(fmt::format("{}: storage {} is truncated", path.string(), key));
    flat = at::empty({numel}, at::TensorOptions().dtype(type));
    if (numel > 0)
      std::memcpy(flat.data_ptr(), data.get(),
                  static_cast<std::size_t>(numel) * c10::elementSize(type));
    return flat;
  };
  const PicklePtr root =
      unpickle({static_cast<const char*>(pickle.get()), pickle_bytes}, load, path.string());
  TensorMap tensors;
  collect(weights_of(*root), "", 0, tensors);
  if (tensors.empty()) throw DataError(path.string() + ": there are no tensors in it");
  return tensors;
}

void write_pth(const fs::path& path, const TensorMap& tensors) {
  std::vector<std::pair<std::string, at::Tensor>> ordered;
  for (const auto& [name, tensor] : tensors)
    ordered.emplace_back(name, tensor.detach().contiguous());
  const std::string pickle = pickle_state_dict(ordered);
  write_file_atomic(path, [&](int fd) {
    std::size_t written = 0;
    caffe2::serialize::PyTorchStreamWriter archive([&](const void* data, std::size_t n) {
      // The archive's own errors do not say why; an exception may not pass through its C code.
      try {
        write_all(fd, {static_cast<const char*>(data), n}, path);
      } catch (const Error&) {
        return std::size_t{0};
      }
      written += n;
      return n;
    });
    try {
      archive.writeRecord("data.pkl", pickle.data(), pickle.size());
      for (std::size_t i = 0; i < ordered.size(); ++i)
        archive.writeRecord(
            "data/" + std::to_string(i), ordered[i].second.data_ptr(),
            static_cast<std::size_t>(ordered[i].second.numel()) * ordered[i].second.element_size());
      archive.writeEndOfFile();
    } catch (const c10::Error& error) {
      throw IoError(fmt::format("cannot write {} ({} bytes written): {}", path.string(), written,
                                error.what_without_backtrace()),
                    "is the disk full?");
    }
  });
}

}  // namespace tutti::trainer
