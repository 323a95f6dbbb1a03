#include "tutti/trainer/checkpoint/pth.h"

#include <caffe2/serialize/inline_container.h>
#include <fmt/format.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/threads.h"
#include "tutti/trainer/checkpoint/pickle.h"

namespace tutti::trainer {
namespace fs = std::filesystem;
namespace {

void collect(const PickleValue& value, const std::string& prefix, int depth, TensorMap& out) {
  if (depth > 64) throw DataError("nested too deeply");
  const auto child = [&](const std::string& name) {
    return prefix.empty() ? name : prefix + "." + name;
  };
  if (value.kind == PickleValue::Kind::kTensor) out[prefix] = value.tensor;
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

namespace {

// Why the reader of archives refused a file, by its first bytes.
[[noreturn]] void throw_no_archive(const fs::path& path) {
  std::string start(16, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  start.resize(static_cast<std::size_t>(file.gcount()));
  if (start == "version https://")
    throw DataError(path.string() + ": a Git LFS pointer, not the weights themselves",
                    "git lfs pull, in the repository it came from");
  // A zip's table of contents is at its end.
  if (start.empty() || start.starts_with("PK\x03\x04"))
    throw DataError(path.string() + ": cut short, the end of the zip archive is missing",
                    "fetch it again");
  throw DataError(path.string() + ": not a zip archive of torch.save",
                  "files of PyTorch before 1.6: load and save them again with a newer one");
}

std::unique_ptr<caffe2::serialize::PyTorchStreamReader> open_archive(const fs::path& path) {
  if (!fs::exists(path)) throw IoError("cannot open " + path.string() + ": no such file");
  try {
    return std::make_unique<caffe2::serialize::PyTorchStreamReader>(path.string());
  } catch (const std::exception&) {
    throw_no_archive(path);
  }
}

auto record_of(caffe2::serialize::PyTorchStreamReader& archive, const std::string& name,
               const fs::path& path) {
  if (!archive.hasRecord(name))
    throw DataError(fmt::format("{}: '{}' is missing in the archive", path.string(), name));
  return archive.getRecord(name);
}

}  // namespace

// The first reading makes tensors without data; their storages' addresses tell whose they are.
struct PthFile::Impl {
  fs::path path;
  std::unique_ptr<caffe2::serialize::PyTorchStreamReader> archive;
  std::map<std::string, at::Tensor> storages;  // on the meta device, by key
  std::map<const c10::StorageImpl*, std::string> key_of;
  TensorMap tensors;  // on the meta device
};

PthFile::PthFile(const fs::path& path) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  impl_->archive = open_archive(path);
  const auto [pickle, pickle_bytes] = record_of(*impl_->archive, "data.pkl", path);
  const StorageLoader note = [&](const std::string& key, at::ScalarType type, std::int64_t numel) {
    at::Tensor& flat = impl_->storages[key];
    if (flat.defined()) return flat;
    if (numel < 0) throw DataError(fmt::format("{}: storage {} is damaged", path.string(), key));
    flat = at::empty({numel}, at::TensorOptions().dtype(type).device(at::kMeta));
    impl_->key_of[flat.storage().unsafeGetStorageImpl()] = key;
    return flat;
  };
  const PicklePtr root =
      unpickle({static_cast<const char*>(pickle.get()), pickle_bytes}, note, path.string());
  collect(weights_of(*root), "", 0, impl_->tensors);
  if (impl_->tensors.empty()) throw DataError(path.string() + ": there are no tensors in it");
  for (const auto& [name, tensor] : impl_->tensors)
    specs_[name] = {tensor.scalar_type(), tensor.sizes().vec()};
}

PthFile::~PthFile() = default;

at::Tensor PthFile::read(const std::string& name) const {
  const at::Tensor& shape = impl_->tensors.at(name);
  at::Tensor out = at::empty(shape.sizes(), at::TensorOptions().dtype(shape.scalar_type()));
  if (out.numel() == 0) return out;
  const std::string& key = impl_->key_of.at(shape.storage().unsafeGetStorageImpl());
  const auto [data, num_bytes] = record_of(*impl_->archive, "data/" + key, impl_->path);
  const std::int64_t numel = impl_->storages.at(key).numel();
  if (num_bytes / c10::elementSize(shape.scalar_type()) < static_cast<std::size_t>(numel))
    throw DataError(fmt::format("{}: storage {} is truncated", impl_->path.string(), key));
  // const_cast: from_blob has no form for memory that is only read.
  const at::Tensor flat = at::from_blob(const_cast<void*>(data.get()), {numel}, out.options());
  return out.copy_(flat.as_strided(shape.sizes(), shape.strides(), shape.storage_offset()));
}

PicklePtr read_pickle(const fs::path& path) {
  const auto archive = open_archive(path);
  const auto [pickle, pickle_bytes] = record_of(*archive, "data.pkl", path);
  std::map<std::string, at::Tensor> storages;
  const StorageLoader load = [&](const std::string& key, at::ScalarType type, std::int64_t numel) {
    at::Tensor& flat = storages[key];
    if (flat.defined()) return flat;
    const auto [data, num_bytes] = record_of(*archive, "data/" + key, path);
    if (numel < 0 || num_bytes / c10::elementSize(type) < static_cast<std::size_t>(numel))
      throw DataError(fmt::format("{}: storage {} is damaged", path.string(), key));
    flat = at::empty({numel}, at::TensorOptions().dtype(type));
    if (numel > 0) std::memcpy(flat.data_ptr(), data.get(), flat.nbytes());
    return flat;
  };
  return unpickle({static_cast<const char*>(pickle.get()), pickle_bytes}, load, path.string());
}

// Large files are read by several threads, each with an archive of its own (a reader has one
// position): copying and checksums take longer than the disk does.
TensorMap read_pth(const fs::path& path) {
  const PthFile first(path);
  TensorMap tensors;
  std::vector<std::pair<const std::string*, at::Tensor*>> wanted;
  std::uint64_t total = 0;
  for (const auto& [name, spec] : first.specs()) {
    wanted.emplace_back(&name, &tensors[name]);
    total += spec.num_bytes();
  }
  constexpr std::uint64_t kWorthAThread = std::uint64_t{64} << 20;
  const std::size_t readers = std::min<std::size_t>(
      threads_at_most(8), static_cast<std::size_t>(total / kWorthAThread) + 1);
  std::atomic<std::size_t> next{0};
  in_threads(readers, readers, [&](std::size_t reader) {
    const std::unique_ptr<PthFile> own = reader > 0 ? std::make_unique<PthFile>(path) : nullptr;
    const PthFile& file = own ? *own : first;
    for (std::size_t i = next++; i < wanted.size(); i = next++)
      *wanted[i].second = file.read(*wanted[i].first);
  });
  return tensors;
}

void stream_pth(const fs::path& path, const TensorSpecs& specs,
                const std::function<at::Tensor(const std::string& name)>& load) {
  std::vector<std::pair<std::string, at::Tensor>> shapes;  // without data
  for (const auto& [name, spec] : specs)
    shapes.emplace_back(
        name, at::empty(spec.shape, at::TensorOptions().dtype(spec.type).device(at::kMeta)));
  const std::string pickle = pickle_state_dict(shapes);
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
      for (std::size_t i = 0; i < shapes.size(); ++i) {
        const at::Tensor tensor = load(shapes[i].first).detach().contiguous();
        archive.writeRecord("data/" + std::to_string(i), tensor.data_ptr(),
                            static_cast<std::size_t>(tensor.numel()) * tensor.element_size());
      }
      archive.writeEndOfFile();
    } catch (const c10::Error& error) {
      throw IoError(fmt::format("cannot write {} ({} bytes written): {}", path.string(), written,
                                error.what_without_backtrace()),
                    "is the disk full?");
    }
  });
}

void write_pth(const fs::path& path, const TensorMap& tensors) {
  TensorSpecs specs;
  for (const auto& [name, tensor] : tensors)
    specs[name] = {tensor.scalar_type(), tensor.sizes().vec()};
  stream_pth(path, specs, [&](const std::string& name) { return tensors.at(name); });
}

}  // namespace tutti::trainer
