#include "tutti/trainer/control.h"

#include <fmt/format.h>

#include <csignal>
#include <cstring>

#include "tutti/core/error.h"

namespace tutti::trainer {
namespace {

class LocalControl final : public Control {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  std::vector<std::string> all_gather(const std::string&, const std::string& blob) override {
    return {blob};
  }
  void set_phase(const std::string&) override {}
  void fail(const std::string&) noexcept override {}
  void check_peers(std::chrono::milliseconds) override {}
  void still_waiting(const std::string& what) override {
    throw CommError(fmt::format("{} did not end within {} s", what, timeout().count()));
  }
  void finish() override {}
};

// The wire form of a vote: fixed size, little endian on every machine we run on.
struct WireVote {
  std::int64_t step;
  std::uint64_t plan_hash;
  std::uint64_t groups;
  double weight;
  std::uint64_t flags;
  std::int64_t signal;
};

constexpr std::uint64_t kHasData = 1, kStop = 2, kOutOfMemory = 4, kBadLoss = 8, kSave = 16,
                        kTimeUp = 32, kAbandoned = 64;

std::string encode(const Vote& vote) {
  const WireVote wire{vote.step,
                      vote.plan_hash,
                      vote.groups,
                      vote.weight,
                      (vote.has_data ? kHasData : 0) | (vote.stop ? kStop : 0) |
                          (vote.out_of_memory ? kOutOfMemory : 0) | (vote.bad_loss ? kBadLoss : 0) |
                          (vote.save ? kSave : 0) | (vote.time_up ? kTimeUp : 0) |
                          (vote.abandoned ? kAbandoned : 0),
                      vote.signal};
  return std::string(reinterpret_cast<const char*>(&wire), sizeof(wire));
}

WireVote decode(const std::string& blob, int rank) {
  WireVote wire{};
  if (blob.size() != sizeof(wire))
    throw CommError(fmt::format("rank {} sent a vote of {} bytes, expected {}", rank, blob.size(),
                                sizeof(wire)),
                    "run the same build of tutti on every node");
  std::memcpy(&wire, blob.data(), sizeof(wire));
  return wire;
}

}  // namespace

int stronger_signal(int a, int b) {
  for (const int signal : {SIGINT, SIGTERM})
    if (a == signal || b == signal) return signal;
  return a != 0 ? a : b;
}

std::unique_ptr<Control> make_local_control() { return std::make_unique<LocalControl>(); }

std::string describe_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

Verdict agree(Control& control, const Vote& vote) {
  Verdict verdict;
  if (control.world_size() == 1) {
    verdict = {.total_weight = vote.weight,
               .contributing = vote.weight > 0 ? 1 : 0,
               .groups = vote.groups,
               .any_data = vote.has_data,
               .stop = vote.stop,
               .signal = vote.signal,
               .abandoned = vote.abandoned,
               .save = vote.save,
               .time_up = vote.time_up};
    if (!vote.has_data) verdict.dry_ranks = {0};
    if (vote.out_of_memory) verdict.out_of_memory_ranks = {0};
    if (vote.bad_loss) verdict.bad_loss_ranks = {0};
    return verdict;
  }
  const std::vector<std::string> blobs = control.all_gather("step", encode(vote));
  const WireVote first = decode(blobs[0], 0);
  for (int rank = 0; rank < static_cast<int>(blobs.size()); ++rank) {
    const WireVote wire = decode(blobs[static_cast<std::size_t>(rank)], rank);
    if (wire.step != first.step)
      throw CommError(
          fmt::format("rank {} is at step {}, rank 0 at step {}", rank, wire.step, first.step),
          "all ranks must resume from the same checkpoint; is default_root_dir shared?");
    if (wire.plan_hash != first.plan_hash)
      throw DataError(
          fmt::format("rank {} reads another batch plan than rank 0 ({:016x} and {:016x})", rank,
                      wire.plan_hash, first.plan_hash),
          "give every rank the same manifest, shape files and dataloader config");
    // Summed in rank order, so that every rank gets the same bits.
    verdict.total_weight += wire.weight;
    if (wire.weight > 0) ++verdict.contributing;
    verdict.groups |= wire.groups;
    verdict.any_data |= (wire.flags & kHasData) != 0;
    verdict.stop |= (wire.flags & kStop) != 0;
    verdict.signal = stronger_signal(verdict.signal, static_cast<int>(wire.signal));
    verdict.abandoned |= (wire.flags & kAbandoned) != 0;
    verdict.save |= (wire.flags & kSave) != 0;
    verdict.time_up |= (wire.flags & kTimeUp) != 0;
    if (!(wire.flags & kHasData)) verdict.dry_ranks.push_back(rank);
    if (wire.flags & kOutOfMemory) verdict.out_of_memory_ranks.push_back(rank);
    if (wire.flags & kBadLoss) verdict.bad_loss_ranks.push_back(rank);
  }
  return verdict;
}

}  // namespace tutti::trainer
