#include "tutti/trainer/checkpoint/weights.h"

#include <fmt/format.h>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/trainer/checkpoint/checkpoint.h"
#include "tutti/trainer/checkpoint/pth.h"
#include "tutti/trainer/checkpoint/store.h"

namespace tutti::trainer {
namespace fs = std::filesystem;
namespace {

template <class File>  // SafetensorsFile or PthFile
class FileSource final : public WeightsSource {
 public:
  FileSource(const fs::path& path, std::string kind) : file_(path), kind_(std::move(kind)) {}
  const TensorSpecs& specs() const override { return file_.specs(); }
  at::Tensor read(const std::string& name) const override { return file_.read(name); }
  std::string describe() const override { return kind_; }

 private:
  File file_;
  std::string kind_;
};

class CheckpointSource final : public WeightsSource {
 public:
  CheckpointSource(const fs::path& folder, bool trained)
      : trainer_(check_checkpoint(folder)),
        model_(folder / "model.safetensors"),
        extra_(folder / "extra.safetensors"),
        trained_(trained) {}
  const TensorSpecs& specs() const override { return model_.specs(); }
  at::Tensor read(const std::string& name) const override {
    if (trained_ && extra_.specs().count("trained/" + name)) return extra_.read("trained/" + name);
    return model_.read(name);
  }
  std::string describe() const override {
    const int ranks = trainer_.value("world_size", 1);
    return fmt::format("checkpoint of step {}, epoch {}, batch {}, trained by {} rank{}",
                       trainer_.value("step", 0), trainer_.value("epoch", 0),
                       trainer_.value("batch", 0), ranks, ranks == 1 ? "" : "s");
  }

 private:
  Json trainer_;
  SafetensorsFile model_;
  SafetensorsFile extra_;
  bool trained_;
};

}  // namespace

std::unique_ptr<WeightsSource> open_weights(const fs::path& path, bool trained) {
  if (!fs::exists(path)) throw IoError("cannot open " + path.string() + ": no such file or folder");
  if (fs::is_directory(path)) {
    if (fs::exists(path / "index.json")) return std::make_unique<CheckpointSource>(path, trained);
    const auto newest = CheckpointStore::newest_folder(path);
    if (!newest)
      throw DataError(path.string() + ": there is no whole checkpoint in it",
                      "give a folder like exp/checkpoints or exp/checkpoints/step-00001200");
    return std::make_unique<CheckpointSource>(*newest, trained);
  }
  if (trained)
    throw ConfigError(path.string() + ": a file holds one set of weights",
                      "leave out --trained, or give the checkpoint's folder");
  if (path.extension() == ".safetensors")
    return std::make_unique<FileSource<SafetensorsFile>>(path, "safetensors file");
  if (path.extension() == ".pth" || path.extension() == ".pt" || path.extension() == ".ckpt")
    return std::make_unique<FileSource<PthFile>>(path, "PyTorch file");
  throw ConfigError(fmt::format("{}: got a file ending in '{}', expected .safetensors or .pth",
                                path.string(), path.extension().string()));
}

void write_weights(const WeightsSource& source, const fs::path& path) {
  const auto load = [&](const std::string& name) { return source.read(name); };
  if (path.extension() == ".pth") {
    stream_pth(path, source.specs(), load);
  } else if (path.extension() == ".safetensors") {
    const fs::path partial = path.string() + ".partial";
    try {
      stream_safetensors(partial, SafetensorsLayout(source.specs(), {{"format", "pt"}}), load);
      fs::rename(partial, path);
    } catch (...) {  // whatever happened, leave no half file behind
      std::error_code ignored;
      fs::remove(partial, ignored);
      throw;
    }
  } else {
    throw ConfigError(fmt::format("{}: got a name ending in '{}', expected .safetensors or .pth",
                                  path.string(), path.extension().string()));
  }
}

}  // namespace tutti::trainer
