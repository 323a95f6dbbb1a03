// Tells when an operator is about to read or write a tensor.
//
// C++ modules have no forward hooks, and a model's layers are called in ways a library cannot wrap.
// So FSDP looks one level lower: every torch operator, in forward, backward and recomputation, goes
// through torch's dispatcher, where a fallback on an otherwise unused dispatch key sees its inputs
// first. Models need no change, and what a model does with its layers does not matter.
//
//   WatchScope scope(&my_watch);      // this thread, and the backward passes it starts
//   model.forward(x);                 // my_watch.before(...) for every operator
//
// RecordFunction observers would see the same, but swallow exceptions: an operator whose weights
// could not be gathered would then run on freed memory.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

namespace tutti::trainer {

using Storages = c10::SmallVector<c10::StorageImpl*, 8>;

class OperatorWatch {
 public:
  virtual ~OperatorWatch() = default;
  // `used`: the storages of all tensors among the operator's inputs. What it throws comes out of
  // the operator. Operators called inside are not watched. Called by one thread at a time, which in
  // a backward pass on a GPU is one of autograd's.
  virtual void before(const Storages& used) = 0;
};

// One at a time in a process (InternalError): the dispatcher's fallback is a plain function, and a
// process trains one model.
class WatchScope {
 public:
  explicit WatchScope(OperatorWatch* watch);
  ~WatchScope();
  WatchScope(const WatchScope&) = delete;
  WatchScope& operator=(const WatchScope&) = delete;
};

}  // namespace tutti::trainer
