#include "tutti/trainer/checkpoint/checkpoint.h"

#include <fmt/format.h>
#include <torch/torch.h>
#include <unistd.h>

#include "tutti/core/crc32c.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"

namespace tutti::trainer {
namespace fs = std::filesystem;
namespace {

FileSum write_text(const fs::path& path, const std::string& text) {
  write_file_atomic(path, text);
  return {text.size(), crc32c(text)};
}

std::string read_checked(const fs::path& path, std::uint32_t expected) {
  std::string text = read_file(path);
  if (crc32c(text) != expected)
    throw DataError(path.string() + ": checksum differs: the file was damaged");
  return text;
}

// What index.json says, after COMPLETE says that index.json is right.
class Index {
 public:
  explicit Index(const fs::path& folder) : folder_(folder) {
    if (!fs::exists(folder / "COMPLETE"))
      throw DataError(folder.string() + ": not a complete checkpoint (no COMPLETE marker)");
    const std::string marker(trim(read_file(folder / "COMPLETE")));
    const std::string text = read_file(folder / "index.json");
    if (marker != fmt::format("{:08x}", crc32c(text)))
      throw DataError((folder / "index.json").string() +
                      ": checksum differs: the file was damaged");
    json_ = parse_json(text, (folder / "index.json").string());
    if (json_.value("format", 0) != 1)
      throw DataError(folder.string() + ": written by a newer tutti", "update tutti");
  }
  std::uint32_t crc_of(const std::string& name) const {
    if (!json_["files"].contains(name))
      throw DataError(fmt::format("{}: index.json does not list {}", folder_.string(), name));
    return json_["files"][name]["crc32c"].get<std::uint32_t>();
  }
  Json trainer() const {
    const fs::path path = folder_ / "trainer.json";
    return parse_json(read_checked(path, crc_of("trainer.json")), path.string());
  }

 private:
  fs::path folder_;
  Json json_;
};

}  // namespace

std::string part_key(std::size_t file, const std::string& name) {
  return fmt::format("{}/{}", file, name);
}

std::string parameter_of(const std::string& name) {
  if (name.find("/step/") != std::string::npos) return "";
  const std::size_t slash = name.rfind('/');
  return slash == std::string::npos ? name : name.substr(slash + 1);
}

fs::path temporary_folder(const fs::path& folder, const std::string& tag) {
  return folder.parent_path() / fmt::format(".{}.tmp-{}", folder.filename().string(), tag);
}

void seal_checkpoint(const fs::path& temporary, const fs::path& folder,
                     const std::map<std::string, FileSum>& files, const Json& trainer) {
  Json index = {{"format", 1}, {"files", Json::object()}};
  const auto note = [&index](const std::string& name, const FileSum& sum) {
    index["files"][name] = {{"bytes", sum.num_bytes}, {"crc32c", sum.crc32c}};
  };
  for (const auto& [name, sum] : files) note(name, sum);
  note("trainer.json", write_text(temporary / "trainer.json", trainer.dump(1) + "\n"));
  const FileSum index_sum = write_text(temporary / "index.json", index.dump(1) + "\n");
  write_text(temporary / "COMPLETE", fmt::format("{:08x}\n", index_sum.crc32c));
  fsync_folder(temporary);
  // The same step saved before: moved away first, a rename cannot replace a full folder.
  const fs::path old = temporary.string() + "-old";
  if (fs::exists(folder)) fs::rename(folder, old);
  fs::rename(temporary, folder);
  fsync_folder(folder.parent_path());
  std::error_code ignored;
  fs::remove_all(old, ignored);
}

void write_checkpoint(const fs::path& folder, const Checkpoint& checkpoint) {
  const fs::path temporary = temporary_folder(folder, std::to_string(::getpid()));
  make_folders(folder.parent_path());
  std::error_code ignored;
  fs::remove_all(temporary, ignored);
  try {
    make_folders(temporary);
    std::map<std::string, FileSum> sums;
    const TensorMap* maps[] = {&checkpoint.model, &checkpoint.optimizer, &checkpoint.extra};
    for (std::size_t i = 0; i < kCheckpointFiles.size(); ++i)
      sums[kCheckpointFiles[i]] =
          write_safetensors(temporary / kCheckpointFiles[i], *maps[i], {{"format", "pt"}});
    seal_checkpoint(temporary, folder, sums, checkpoint.trainer);
  } catch (const fs::filesystem_error& error) {
    fs::remove_all(temporary, ignored);
    throw IoError(error.what());
  } catch (...) {  // whatever happened, leave no half checkpoint behind
    fs::remove_all(temporary, ignored);
    throw;
  }
}

Checkpoint read_checkpoint(const fs::path& folder) {
  const Index index(folder);
  Checkpoint checkpoint;
  TensorMap* maps[] = {&checkpoint.model, &checkpoint.optimizer, &checkpoint.extra};
  for (std::size_t i = 0; i < kCheckpointFiles.size(); ++i)
    *maps[i] = read_safetensors(folder / kCheckpointFiles[i], index.crc_of(kCheckpointFiles[i]));
  checkpoint.trainer = index.trainer();
  return checkpoint;
}

Json check_checkpoint(const fs::path& folder) {
  const Index index(folder);
  for (const char* name : kCheckpointFiles) {
    SafetensorsFile header(folder / name);
    check_file_crc32c(folder / name, index.crc_of(name));
  }
  return index.trainer();
}

std::uint32_t file_sum(const fs::path& folder, const std::string& name) {
  return Index(folder).crc_of(name);
}

Checkpoint read_checkpoint_parts(const fs::path& folder, const PartRanges& parameters) {
  Checkpoint checkpoint;
  checkpoint.trainer = Index(folder).trainer();
  TensorMap* maps[] = {&checkpoint.model, &checkpoint.optimizer, &checkpoint.extra};
  for (std::size_t i = 0; i < kCheckpointFiles.size(); ++i) {
    const SafetensorsFile file(folder / kCheckpointFiles[i]);
    for (const auto& [name, spec] : file.specs()) {
      // An update count goes with its parameter: nothing of it where the range is empty.
      const std::size_t slash = name.rfind('/');
      const auto owner =
          parameters.find(slash == std::string::npos ? name : name.substr(slash + 1));
      if (owner != parameters.end() && owner->second.numel == 0 && i > 0) continue;
      const auto range = parameters.find(parameter_of(name));
      if (range == parameters.end()) {
        (*maps[i])[name] = file.read(name);
        continue;
      }
      if (spec.shape != range->second.shape)
        throw DataError(fmt::format("{}: '{}' has another shape than in the model",
                                    (folder / kCheckpointFiles[i]).string(), name),
                        "use the model config the weights were trained with");
      (*maps[i])[name] = file.read(name, range->second.start, range->second.numel);
    }
  }
  return checkpoint;
}

void load_tensors(const TensorMap& from, TensorMap to, const std::string& where) {
  torch::NoGradGuard no_grad;
  std::vector<std::string> problems;
  for (auto& [name, tensor] : to) {
    const auto found = from.find(name);
    if (found == from.end())
      problems.push_back("missing: " + name);
    else if (found->second.sizes() != tensor.sizes())
      problems.push_back("another shape: " + name);
    else
      tensor.detach().copy_(found->second);
  }
  for (const auto& [name, tensor] : from)
    if (!to.count(name)) problems.push_back("not in the model: " + name);
  if (problems.empty()) return;
  constexpr std::size_t kShown = 10;
  const std::size_t total = problems.size();
  problems.resize(std::min(kShown, total));
  if (total > kShown) problems.push_back(fmt::format("and {} more", total - kShown));
  throw DataError(
      fmt::format("{} does not fit the model:\n    {}", where, join(problems, "\n    ")),
      "use the model config the weights were trained with");
}

FileSum average_models(const std::vector<fs::path>& files, const fs::path& output) {
  if (files.empty()) throw InternalError("average_models: no files");
  std::vector<std::unique_ptr<SafetensorsFile>> inputs;
  for (const fs::path& path : files) inputs.push_back(std::make_unique<SafetensorsFile>(path));
  const TensorSpecs& specs = inputs[0]->specs();
  for (std::size_t i = 1; i < files.size(); ++i)
    for (const auto& [name, spec] : specs) {
      const auto found = inputs[i]->specs().find(name);
      if (found == inputs[i]->specs().end() || found->second.shape != spec.shape)
        throw DataError(fmt::format("{}: '{}' is missing or has another shape than in {}",
                                    files[i].string(), name, files[0].string()));
    }
  const auto mean = [&](const std::string& name) {
    const at::Tensor first = inputs[0]->read(name);
    if (!first.is_floating_point()) return first;
    at::Tensor sum = first.to(at::kDouble);
    for (std::size_t i = 1; i < inputs.size(); ++i) sum.add_(inputs[i]->read(name));
    return sum.div_(static_cast<double>(inputs.size())).to(first.scalar_type());
  };
  return stream_safetensors(output, SafetensorsLayout(specs, {{"format", "pt"}}), mean);
}

}  // namespace tutti::trainer
