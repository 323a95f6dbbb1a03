#include "tutti/trainer/checkpoint/shared.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "tutti/core/crc32c.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"

namespace tutti::trainer {
namespace fs = std::filesystem;
namespace {

// A rank's range of one tensor, as it travels.
struct Offer {
  std::int64_t start = 0;
  std::int64_t numel = 0;
  int rank = 0;
};

Json offers_of(const Checkpoint& mine) {
  Json list = Json::array();
  const TensorMap* maps[] = {&mine.model, &mine.optimizer, &mine.extra};
  for (std::size_t file = 0; file < kCheckpointFiles.size(); ++file)
    for (const auto& [name, tensor] : *maps[file]) {
      const auto part = mine.parts.find(part_key(file, name));
      const bool whole = part == mine.parts.end();
      list.push_back({file, name, safetensors_type(tensor.scalar_type()),
                      whole ? tensor.sizes().vec() : part->second.shape,
                      whole ? std::int64_t{0} : part->second.start, tensor.numel()});
    }
  return list;
}

void pwrite_all(int fd, std::string_view bytes, std::uint64_t offset, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(fd, bytes.data(), std::min<std::size_t>(bytes.size(), 1u << 30),
                                  static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) throw_errno("cannot write " + path.string(), errno);
    bytes.remove_prefix(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
}

std::string_view bytes_in(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.data_ptr()),
          static_cast<std::size_t>(tensor.numel()) * tensor.element_size()};
}

fs::path part_list(const fs::path& temporary, int rank) {
  return temporary / fmt::format("part-{}.json", rank);
}

// The checksum of a whole file from those of its extents, which must lie end to end.
FileSum sum_of_extents(const SafetensorsLayout& layout,
                       std::map<std::uint64_t, std::pair<std::uint64_t, std::uint32_t>> extents,
                       const fs::path& path) {
  FileSum sum{layout.head().size(), crc32c(layout.head())};
  for (const auto& [offset, extent] : extents) {
    const auto& [num_bytes, crc] = extent;
    if (num_bytes == 0) continue;
    if (offset != sum.num_bytes)
      throw IoError(fmt::format("{}: bytes {}..{} were written by nobody", path.string(),
                                sum.num_bytes, offset));
    sum.crc32c = crc32c_combine(sum.crc32c, crc, num_bytes);
    sum.num_bytes += num_bytes;
  }
  if (sum.num_bytes != layout.num_bytes())
    throw IoError(fmt::format("{}: {} of {} bytes were written", path.string(), sum.num_bytes,
                              layout.num_bytes()));
  return sum;
}

}  // namespace

SharedSave agree_on_save(const Checkpoint& mine, Control& control) {
  SharedSave save;
  save.rank = control.rank();
  save.world_size = control.world_size();
  const Json own = {{"tag", std::to_string(::getpid())}, {"tensors", offers_of(mine)}};
  const auto blobs = control.all_gather("checkpoint parts", own.dump());
  std::vector<TensorSpecs> specs(kCheckpointFiles.size());
  std::map<std::pair<std::size_t, std::string>, std::vector<Offer>> offers;
  for (int rank = 0; rank < save.world_size; ++rank) {
    const Json blob = parse_json(blobs[static_cast<std::size_t>(rank)], "checkpoint parts");
    if (rank == 0) save.tag = blob.at("tag").get<std::string>();
    for (const Json& item : blob.at("tensors")) {
      const auto file = item[0].get<std::size_t>();
      const auto name = item[1].get<std::string>();
      specs[file][name] = {scalar_type_of(item[2].get<std::string>()),
                           item[3].get<std::vector<std::int64_t>>()};
      const Offer offer{item[4].get<std::int64_t>(), item[5].get<std::int64_t>(), rank};
      std::vector<Offer>& known = offers[{file, name}];
      const bool again = std::any_of(known.begin(), known.end(), [&](const Offer& o) {
        return o.start == offer.start && o.numel == offer.numel;
      });
      if (!again) known.push_back(offer);
    }
  }
  for (TensorSpecs& of_file : specs)
    save.layouts.emplace_back(std::move(of_file),
                              std::map<std::string, std::string>{{"format", "pt"}});
  const TensorMap* maps[] = {&mine.model, &mine.optimizer, &mine.extra};
  for (auto& [key, known] : offers) {
    const auto& [file, name] = key;
    const TensorSpec& spec = save.layouts[file].specs().at(name);
    std::sort(known.begin(), known.end(),
              [](const Offer& a, const Offer& b) { return a.start < b.start; });
    std::int64_t covered = 0;
    for (const Offer& offer : known) {
      if (offer.start != covered)
        throw InternalError(
            fmt::format("checkpoint: '{}' has a gap or an overlap at element {}", name, covered));
      covered += offer.numel;
      if (offer.rank != save.rank) continue;
      save.own.push_back({file,
                          save.layouts[file].offset(name) +
                              static_cast<std::uint64_t>(offer.start) * c10::elementSize(spec.type),
                          maps[file]->at(name).contiguous()});
    }
    if (covered != spec.numel())
      throw InternalError(
          fmt::format("checkpoint: '{}' has {} of {} elements", name, covered, spec.numel()));
  }
  return save;
}

void write_own_part(const fs::path& folder, const SharedSave& save) {
  const fs::path temporary = temporary_folder(folder, save.tag);
  make_folders(temporary);
  Json list = Json::array();
  for (std::size_t file = 0; file < kCheckpointFiles.size(); ++file) {
    const fs::path path = temporary / kCheckpointFiles[file];
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    if (!fd) throw_errno("cannot create " + path.string(), errno);
    if (save.rank == 0) pwrite_all(fd.get(), save.layouts[file].head(), 0, path);
    for (const SharedSave::Extent& extent : save.own) {
      if (extent.file != file) continue;
      const std::string_view bytes = bytes_in(extent.tensor);
      pwrite_all(fd.get(), bytes, extent.offset, path);
      list.push_back({file, extent.offset, bytes.size(), crc32c(bytes)});
    }
    fsync_file(fd.get(), path);
  }
  write_file_atomic(part_list(temporary, save.rank), list.dump());
}

void complete_checkpoint(const fs::path& folder, const SharedSave& save, const Json& trainer,
                         const std::function<bool()>& give_up) {
  const fs::path temporary = temporary_folder(folder, save.tag);
  std::vector<std::map<std::uint64_t, std::pair<std::uint64_t, std::uint32_t>>> extents(
      kCheckpointFiles.size());
  for (int rank = 0; rank < save.world_size; ++rank) {
    const fs::path list = part_list(temporary, rank);
    while (!fs::exists(list)) {
      if (give_up())
        throw IoError(fmt::format("{}: rank {} did not write its part", folder.string(), rank));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    for (const Json& item : parse_json(read_file(list), list.string()))
      extents[item[0].get<std::size_t>()][item[1].get<std::uint64_t>()] = {
          item[2].get<std::uint64_t>(), item[3].get<std::uint32_t>()};
    fs::remove(list);
  }
  std::map<std::string, FileSum> sums;
  for (std::size_t file = 0; file < kCheckpointFiles.size(); ++file)
    sums[kCheckpointFiles[file]] = sum_of_extents(save.layouts[file], std::move(extents[file]),
                                                  temporary / kCheckpointFiles[file]);
  seal_checkpoint(temporary, folder, sums, trainer);
}

}  // namespace tutti::trainer
