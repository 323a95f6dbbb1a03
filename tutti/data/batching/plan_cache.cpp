#include "tutti/data/batching/plan_cache.h"

#include <fmt/format.h>

#include <cstring>

#include "tutti/core/crc32c.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/data/batching/plan.h"

namespace tutti::data {
namespace fs = std::filesystem;
namespace {

// The file: this header, the ends, the items; all little-endian, checksum over all that follows it.
struct Header {
  char magic[8] = {'T', 'U', 'T', 'T', 'I', 'P', 'L', '1'};
  std::uint32_t crc = 0;
  std::uint32_t world = 0;
  std::uint64_t fingerprint = 0;
  std::uint64_t epoch = 0;
  std::uint64_t num_batches = 0;
  std::uint64_t num_items = 0;
};

constexpr std::size_t kChecked = 12;  // the checksum covers everything after itself

}  // namespace

fs::path PlanCache::file_of(std::uint64_t fingerprint, std::uint64_t epoch) const {
  return folder_ / fmt::format("plan-{:016x}-{}.bin", fingerprint, epoch);
}

std::optional<EpochPlan> PlanCache::load(std::uint64_t fingerprint, std::uint64_t epoch,
                                         int world) const {
  const fs::path file = file_of(fingerprint, epoch);
  std::error_code status;
  if (!fs::exists(file, status)) return std::nullopt;
  try {
    const std::string bytes = read_file(file);
    Header header;
    const Header expected;
    if (bytes.size() >= sizeof header) std::memcpy(&header, bytes.data(), sizeof header);
    const std::uint64_t payload = bytes.size() < sizeof header ? 0 : bytes.size() - sizeof header;
    const bool fits = bytes.size() >= sizeof header &&
                      std::memcmp(header.magic, expected.magic, 8) == 0 &&
                      header.num_batches <= payload / 4 && header.num_items <= payload / 4 &&
                      (header.num_batches + header.num_items) * 4 == payload &&
                      header.fingerprint == fingerprint && header.epoch == epoch &&
                      header.world == static_cast<std::uint32_t>(world) &&
                      header.crc == crc32c(std::string_view(bytes).substr(kChecked));
    if (!fits) {
      log::warning("{}: not a whole plan; computing it again", file.string());
      return std::nullopt;
    }
    std::vector<std::uint32_t> ends(header.num_batches);
    std::vector<std::uint32_t> items(header.num_items);
    std::memcpy(ends.data(), bytes.data() + sizeof header, ends.size() * 4);
    std::memcpy(items.data(), bytes.data() + sizeof header + ends.size() * 4, items.size() * 4);
    return EpochPlan(BatchList::from_arrays(std::move(items), std::move(ends)), world);
  } catch (const IoError& error) {
    log::warning("{}", error.what());
    return std::nullopt;
  }
}

void PlanCache::save(std::uint64_t fingerprint, std::uint64_t epoch, const EpochPlan& plan) const {
  Header header;
  header.world = static_cast<std::uint32_t>(plan.world());
  header.fingerprint = fingerprint;
  header.epoch = epoch;
  header.num_batches = plan.batches().size();
  header.num_items = plan.batches().num_items();
  std::string bytes(sizeof header, '\0');
  bytes.append(reinterpret_cast<const char*>(plan.batches().ends().data()), header.num_batches * 4);
  bytes.append(reinterpret_cast<const char*>(plan.batches().items().data()), header.num_items * 4);
  std::memcpy(bytes.data(), &header, sizeof header);
  header.crc = crc32c(std::string_view(bytes).substr(kChecked));
  std::memcpy(bytes.data(), &header, sizeof header);
  try {
    make_folders(folder_);
    write_file_atomic(file_of(fingerprint, epoch), bytes);
    // The epoch before stays: another rank may still be about to read it.
    std::error_code ignored;
    if (epoch >= 2) fs::remove(file_of(fingerprint, epoch - 2), ignored);
  } catch (const IoError& error) {
    log::warning("the batch plan could not be kept: {}", error.what());
  }
}

}  // namespace tutti::data
