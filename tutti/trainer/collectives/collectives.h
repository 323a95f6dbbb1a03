// Tensors between ranks: one small interface over Gloo (CPU), NCCL (GPU) and our TCP ring.
//
//   WorkPtr work = collectives.all_reduce(flat);   // started, in order, on all ranks alike
//   ...                                            // compute goes on
//   wait(*work, control);                          // or throws, naming the rank that is missing
//
// Every rank must start the same operations in the same order. Operations run in the background;
// the tensors belong to the operation until its Work is done. One thread starts operations.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <string>

#include "tutti/launch/control.h"
#include "tutti/trainer/control.h"

namespace tutti::trainer {

class Work {
 public:
  virtual ~Work() = default;
  // True when the result may be used (on a GPU: by work queued on the current stream from now on).
  // Throws CommError when the operation failed.
  virtual bool wait_for(std::chrono::milliseconds limit) = 0;
};
using WorkPtr = std::shared_ptr<Work>;  // shared: the transport's thread holds it too

class Collectives {
 public:
  Collectives(int rank, int world_size) : rank_(rank), world_size_(world_size) {}
  virtual ~Collectives() = default;
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }

  virtual WorkPtr all_reduce(at::Tensor flat) = 0;  // sum, in place
  virtual WorkPtr broadcast(at::Tensor flat, int root) = 0;
  virtual WorkPtr all_gather(at::Tensor out, at::Tensor in) = 0;      // out: W x in
  virtual WorkPtr reduce_scatter(at::Tensor out, at::Tensor in) = 0;  // in: W x out, sum
  // Gives up on everything under way; nothing but the destructor may follow.
  virtual void abort() noexcept = 0;
  virtual std::string name() const = 0;  // "gloo", "nccl", "tcp", "local"

 private:
  int rank_;
  int world_size_;
};

// Waits in slices and asks the side channel in between, so that a dead or silent rank is reported
// in seconds with its number instead of after the transport's own timeout; one that is alive but
// does not come, after control.timeout().
void wait(Work& work, Control& control, const std::string& what);

std::unique_ptr<Collectives> make_local_collectives();

// What a transport needs to find its peers. Thread-safe.
class KeyValue {
 public:
  virtual ~KeyValue() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual std::string get(const std::string& key) = 0;  // waits for the key; throws CommError
  virtual std::int64_t add(const std::string& key, std::int64_t by) = 0;
};

// Gloo through torch's c10d. ConfigError where this libtorch has no Gloo headers (pip wheels).
// `interface_address`: the address of this host that the others reach.
bool gloo_available();
std::unique_ptr<Collectives> make_gloo_collectives(std::shared_ptr<KeyValue> store, int rank,
                                                   int world_size,
                                                   const std::string& interface_address);

// Our own TCP ring, on CPUs. Collective: all ranks. Throws CommError when a rank is missing.
std::unique_ptr<Collectives> make_tcp_collectives(std::shared_ptr<launch::ControlPlane> plane);

}  // namespace tutti::trainer
