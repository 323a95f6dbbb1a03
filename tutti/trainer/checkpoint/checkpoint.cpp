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

constexpr const char* kParts[] = {"model.safetensors", "optimizer.safetensors",
                                  "extra.safetensors"};

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

}  // namespace

void write_checkpoint(const fs::path& folder, const Checkpoint& checkpoint) {
  const fs::path parent = folder.parent_path();
  const fs::path temporary =
      parent / fmt::format(".{}.tmp-{}", folder.filename().string(), ::getpid());
  make_folders(parent);
  std::error_code ignored;
  fs::remove_all(temporary, ignored);
  try {
    make_folders(temporary);
    Json index = {{"format", 1}, {"files", Json::object()}};
    const auto note = [&index](const char* name, const FileSum& sum) {
      index["files"][name] = {{"bytes", sum.num_bytes}, {"crc32c", sum.crc32c}};
    };
    const TensorMap* maps[] = {&checkpoint.model, &checkpoint.optimizer, &checkpoint.extra};
    for (std::size_t i = 0; i < 3; ++i)
      note(kParts[i], write_safetensors(temporary / kParts[i], *maps[i], {{"format", "pt"}}));
    note("trainer.json", write_text(temporary / "trainer.json", checkpoint.trainer.dump(1) + "\n"));
    const FileSum index_sum = write_text(temporary / "index.json", index.dump(1) + "\n");
    write_text(temporary / "COMPLETE", fmt::format("{:08x}\n", index_sum.crc32c));
    fsync_folder(temporary);
    // The same step saved before: moved away first, a rename cannot replace a full folder.
    const fs::path old = temporary.string() + "-old";
    if (fs::exists(folder)) fs::rename(folder, old);
    fs::rename(temporary, folder);
    fsync_folder(parent);
    fs::remove_all(old, ignored);
  } catch (const fs::filesystem_error& error) {
    fs::remove_all(temporary, ignored);
    throw IoError(error.what());
  } catch (...) {  // whatever happened, leave no half checkpoint behind
    fs::remove_all(temporary, ignored);
    throw;
  }
}

Checkpoint read_checkpoint(const fs::path& folder) {
  if (!fs::exists(folder / "COMPLETE"))
    throw DataError(folder.string() + ": not a complete checkpoint (no COMPLETE marker)");
  const std::string marker(trim(read_file(folder / "COMPLETE")));
  const std::string index_text = read_file(folder / "index.json");
  if (marker != fmt::format("{:08x}", crc32c(index_text)))
    throw DataError((folder / "index.json").string() + ": checksum differs: the file was damaged");
  const Json index = parse_json(index_text, (folder / "index.json").string());
  if (index.value("format", 0) != 1)
    throw DataError(folder.string() + ": written by a newer tutti", "update tutti");
  Checkpoint checkpoint;
  const auto crc_of = [&](const char* name) {
    if (!index["files"].contains(name))
      throw DataError(fmt::format("{}: index.json does not list {}", folder.string(), name));
    return index["files"][name]["crc32c"].get<std::uint32_t>();
  };
  TensorMap* maps[] = {&checkpoint.model, &checkpoint.optimizer, &checkpoint.extra};
  for (std::size_t i = 0; i < 3; ++i)
    *maps[i] = read_safetensors(folder / kParts[i], crc_of(kParts[i]));
  checkpoint.trainer = parse_json(read_checked(folder / "trainer.json", crc_of("trainer.json")),
                                  (folder / "trainer.json").string());
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

TensorMap average_models(const std::vector<fs::path>& files) {
  if (files.empty()) throw InternalError("average_models: no files");
  TensorMap sums = read_safetensors(files[0]);
  TensorMap result = sums;
  for (auto& [name, tensor] : sums)
    if (tensor.is_floating_point()) tensor = tensor.to(at::kDouble);
  for (std::size_t i = 1; i < files.size(); ++i) {
    const TensorMap next = read_safetensors(files[i]);
    for (auto& [name, sum] : sums) {
      const auto found = next.find(name);
      if (found == next.end() || found->second.sizes() != sum.sizes())
        throw DataError(fmt::format("{}: '{}' is missing or has another shape than in {}",
                                    files[i].string(), name, files[0].string()));
      if (sum.is_floating_point()) sum.add_(found->second.to(at::kDouble));
    }
  }
  const auto n = static_cast<double>(files.size());
  for (auto& [name, tensor] : result)
    if (tensor.is_floating_point()) tensor = (sums[name] / n).to(tensor.scalar_type());
  return result;
}

}  // namespace tutti::trainer
