#include "tutti/trainer/batch.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/core/error.h"
#include "tutti/core/random.h"
#include "tutti/core/text.h"

namespace tutti::trainer {

const at::Tensor& Batch::operator[](const std::string& name) const {
  const auto found = tensors.find(name);
  if (found != tensors.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [key, tensor] : tensors) names.push_back(key);
  throw DataError(fmt::format("the batch has no '{}', only: {}", name, join(names, ", ")),
                  "check what the collate function of the dataset puts into a batch");
}

std::string Batch::describe_ids() const {
  constexpr std::size_t kShown = 4;
  if (utt_ids.empty()) return "(no ids)";
  std::vector<std::string> shown(utt_ids.begin(),
                                 utt_ids.begin() + std::min(kShown, utt_ids.size()));
  std::string text = join(shown, ", ");
  if (utt_ids.size() > kShown) text += fmt::format(" and {} more", utt_ids.size() - kShown);
  return text;
}

std::optional<std::int64_t> DataSource::batches_left(const Position& position) const {
  const auto all = num_batches(position.epoch);
  return all ? std::optional(std::max<std::int64_t>(0, *all - position.batch)) : std::nullopt;
}

MemorySource::MemorySource(std::vector<Batch> global_batches, int rank, int world_size)
    : batches_(std::move(global_batches)), rank_(rank), world_size_(world_size) {}

namespace {
class MemoryStream final : public BatchStream {
 public:
  MemoryStream(const std::vector<Batch>& batches, std::size_t next, std::size_t stride)
      : batches_(batches), next_(next), stride_(stride) {}
  std::optional<Batch> next() override {
    if (next_ >= batches_.size()) return std::nullopt;
    const std::size_t index = next_;
    next_ += stride_;
    return batches_[index];
  }

 private:
  const std::vector<Batch>& batches_;
  std::size_t next_;
  std::size_t stride_;
};
}  // namespace

static std::int64_t taken_before(const Position& position) {
  std::int64_t batches = 0;
  for (const Taken& part : position.before) batches += part.world_size * part.batches;
  return batches;
}

std::unique_ptr<BatchStream> MemorySource::open(const Position& position) {
  const std::int64_t consumed = taken_before(position) + position.batch * world_size_;
  return std::make_unique<MemoryStream>(batches_, static_cast<std::size_t>(consumed + rank_),
                                        static_cast<std::size_t>(world_size_));
}

std::optional<std::int64_t> MemorySource::batches_left(const Position& position) const {
  if (position.before.empty()) return DataSource::batches_left(position);
  const auto left = static_cast<std::int64_t>(batches_.size()) - taken_before(position);
  return std::max<std::int64_t>(0, (left + world_size_ - 1) / world_size_ - position.batch);
}

std::optional<std::int64_t> MemorySource::num_batches(std::int64_t) const {
  const auto total = static_cast<std::int64_t>(batches_.size());
  return (total - rank_ + world_size_ - 1) / world_size_;
}

std::uint64_t MemorySource::plan_hash(std::int64_t epoch) const {
  return hash_combine({static_cast<std::uint64_t>(epoch), batches_.size()});
}

}  // namespace tutti::trainer
