// CPU collectives over TCP between the ranks, for platforms without Gloo, and for what Gloo lacks
// there (reduce_scatter, bf16).
//
//   Ring ring(*control);                                   // collective: all ranks
//   ring.all_reduce_sum(DType::kFloat32, grads.data(), grads.size());
//
// A ring: every rank sends to the next and receives from the one before at the same time, so each
// link carries 2 (W-1)/W of the data whatever the world's size. Sums are formed chunk by chunk in
// one fixed order and then passed round: the result is bitwise the same on every rank and in every
// run. bf16 is summed in float and rounded to nearest even at every hop.
//
// Not thread-safe: one thread at a time, all ranks the same calls in the same order. A call that
// takes longer than the control plane's timeout, or during which a rank is lost, throws CommError
// naming it; the ring is then of no further use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tutti/launch/control.h"

namespace tutti::launch {

enum class DType { kFloat32, kFloat64, kInt64, kBFloat16, kBytes };  // kBytes: cannot be summed
std::size_t size_of(DType type) noexcept;

class Ring {
 public:
  // REQUIRES: `control` outlives the ring. `timeout` is for one call without any byte moving.
  explicit Ring(ControlPlane& control, Timeout timeout = Timeout(600));
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // In place: `data` holds `n` elements.
  void all_reduce_sum(DType type, void* data, std::size_t n);
  // Everyone gets root's data.
  void broadcast(void* data, std::size_t num_bytes, int root);
  // `mine` has n bytes; `all` gets world_size * n, by rank. They may overlap only if `mine` already
  // lies at its place in `all`.
  void all_gather(const void* mine, void* all, std::size_t num_bytes);
  // `all` has world_size * n elements, by destination; `mine` gets the sum of everyone's part for
  // this rank. `all` is used as scratch and holds no meaning afterwards.
  void reduce_scatter_sum(DType type, void* all, void* mine, std::size_t n);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::launch
