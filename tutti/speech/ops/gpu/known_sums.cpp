#ifdef TUTTI_WITH_CUDA_KERNELS
#include "tutti/speech/ops/gpu/known_sums.h"

#include <torch/torch.h>

#include <vector>

namespace tutti::speech::gpu {

namespace {

constexpr std::size_t kMaxKnown = 8;

struct Known {
  // Weak: memory that is given back may become another gradient's.
  c10::weak_intrusive_ptr<c10::StorageImpl> of;
  const void* begin;
  std::int64_t numel;
  std::uint32_t version;  // autograd may add another gradient in place
  torch::Tensor sums;
};

std::uint32_t version_of(const torch::Tensor& g) {
  return g.unsafeGetTensorImpl()->version_counter().current_version();
}

// Kept for the life of the process, as a thread may end after the driver has.
std::vector<Known>& known_of_thread() {
  thread_local auto* known = new std::vector<Known>;
  return *known;
}

}  // namespace

void know_sums(const torch::Tensor& g, const torch::Tensor& sums) {
  std::vector<Known>& known = known_of_thread();
  std::erase_if(known, [](const Known& k) { return k.of.expired(); });
  if (known.size() == kMaxKnown) known.erase(known.begin());
  known.push_back({g.storage().getWeakStorageImpl(), g.data_ptr(), g.numel(), version_of(g), sums});
}

torch::Tensor take_sums(const torch::Tensor& g) {
  std::vector<Known>& known = known_of_thread();
  for (auto k = known.begin(); k != known.end(); ++k) {
    if (k->of.expired() || k->begin != g.data_ptr() || k->numel != g.numel() ||
        k->version != version_of(g) || k->sums.size(0) != g.size(-1))
      continue;
    torch::Tensor sums = k->sums;
    known.erase(k);
    return sums;
  }
  return {};
}

}  // namespace tutti::speech::gpu
#endif
