#include "tutti/trainer/collectives/trial.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>

#include "tutti/core/error.h"
#include "tutti/core/units.h"

namespace tutti::trainer {
namespace {

// Small whole numbers: their sums are exact in float, whatever the order.
at::Tensor numbers(std::int64_t n, std::int64_t from, at::Device device) {
  return torch::remainder(torch::arange(from, from + n, torch::kFloat), 7).to(device);
}

// All ranks hear of the first that got something else.
void expect(World& world, const char* operation, const at::Tensor& got, const at::Tensor& wanted) {
  const bool right = got.cpu().equal(wanted.cpu());
  const auto answers =
      world.control->all_gather(std::string("result of ") + operation, right ? "right" : "wrong");
  std::vector<int> wrong;
  for (std::size_t rank = 0; rank < answers.size(); ++rank)
    if (answers[rank] != "right") wrong.push_back(static_cast<int>(rank));
  if (!wrong.empty())
    throw CommError(
        fmt::format("{} over {} gives wrong numbers on {}", operation, world.collectives->name(),
                    describe_ranks(wrong)),
        "on GPUs: try NCCL_P2P_DISABLE=1 and NCCL_DEBUG=INFO, and ask the administrator "
        "about IOMMU/ACS settings");
}

// Kernels and copies that were queued are done.
void finish_queued(const at::Tensor& tensor) { tensor.flatten().narrow(0, 0, 1).cpu(); }

// Of one call, on the slowest rank.
double seconds_of(World& world, const std::string& what, int times,
                  const std::function<void()>& call, const at::Tensor& tensor) {
  for (int i = 0; i < 2; ++i) call();  // connections and buffers are made by the first
  finish_queued(tensor);
  world.control->all_gather("before " + what, "");
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < times; ++i) call();
  finish_queued(tensor);
  const double own =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / times;
  double slowest = 0;
  for (const std::string& text : world.control->all_gather("time of " + what, std::to_string(own)))
    slowest = std::max(slowest, std::stod(text));
  return std::max(slowest, 1e-9);
}

}  // namespace

void check_collectives(World& world, at::Device device) {
  const int size = world.control->world_size(), rank = world.control->rank();
  if (size == 1) return;
  Collectives& all = *world.collectives;
  constexpr std::int64_t kLength = 1 << 16;
  const auto done = [&](const WorkPtr& work, const char* what) {
    wait(*work, *world.control, what);
  };
  {
    at::Tensor flat = numbers(kLength, 0, device) + rank;
    done(all.all_reduce(flat), "all_reduce");
    expect(world, "all_reduce", flat, numbers(kLength, 0, at::kCPU) * size + size * (size - 1) / 2);
  }
  {
    at::Tensor flat = rank == size - 1
                          ? numbers(kLength, 3, device)
                          : torch::zeros({kLength}, at::TensorOptions().device(device));
    done(all.broadcast(flat, size - 1), "broadcast");
    expect(world, "broadcast", flat, numbers(kLength, 3, at::kCPU));
  }
  {
    at::Tensor out = torch::zeros({size * kLength}, at::TensorOptions().device(device));
    done(all.all_gather(out, numbers(kLength, rank * kLength, device)), "all_gather");
    expect(world, "all_gather", out, numbers(size * kLength, 0, at::kCPU));
  }
  {
    at::Tensor out = torch::zeros({kLength}, at::TensorOptions().device(device));
    done(all.reduce_scatter(out, numbers(size * kLength, 0, device)), "reduce_scatter");
    expect(world, "reduce_scatter", out, numbers(kLength, rank * kLength, at::kCPU) * size);
  }
}

std::vector<Speed> measure_collectives(World& world, at::Device device,
                                       const std::function<void(const std::string&)>& tell) {
  const int size = world.control->world_size();
  constexpr std::int64_t kKiB = 1 << 10, kMiB = 1 << 20;
  struct Row {
    std::int64_t num_bytes;
    int times;
  };
  // 25 MiB are DDP's buckets. CPUs get no more: it should be over in seconds.
  std::vector<Row> rows = {{kKiB, 50}, {kMiB, 20}, {25 * kMiB, 5}};
  if (device.is_cuda()) rows.push_back({256 * kMiB, 5});
  const auto announce = [&](const std::string& operation, std::int64_t bytes) {
    const std::string what =
        fmt::format("{} of {}", operation, format_bytes(static_cast<std::uint64_t>(bytes)));
    if (tell) tell(what);
    world.control->set_phase(what);
    return what;
  };
  std::vector<Speed> speeds;
  {
    const std::int64_t bytes = rows.back().num_bytes;
    const at::Tensor from = torch::ones({bytes / 4}, at::TensorOptions().device(device));
    at::Tensor to = torch::zeros_like(from);
    const double seconds = seconds_of(
        world, announce("copy", bytes), 5, [&] { to.copy_(from); }, to);
    speeds.push_back({"copy", bytes, seconds, static_cast<double>(bytes) / seconds});
  }
  if (size == 1) return speeds;
  for (const Row& row : rows) {
    at::Tensor flat = torch::zeros({row.num_bytes / 4}, at::TensorOptions().device(device));
    const std::string what = announce("all_reduce", row.num_bytes);
    const double seconds = seconds_of(
        world, what, row.times,
        [&] { wait(*world.collectives->all_reduce(flat), *world.control, what); }, flat);
    const double on_link = 2.0 * (size - 1) / size * static_cast<double>(row.num_bytes);
    speeds.push_back({"all_reduce", row.num_bytes, seconds, on_link / seconds});
  }
  return speeds;
}

}  // namespace tutti::trainer
