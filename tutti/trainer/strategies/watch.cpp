#include "tutti/trainer/strategies/watch.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <atomic>

#include "tutti/core/error.h"

namespace tutti::trainer {
namespace {

// Meant by torch for exactly this: a mode that sees every operator. Nothing in libtorch uses it.
constexpr auto kWatchKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

std::atomic<OperatorWatch*> g_watch{nullptr};

void add_storage(const at::Tensor& tensor, Storages& used) {
  if (tensor.defined() && tensor.has_storage())
    used.push_back(tensor.storage().unsafeGetStorageImpl());
}

void watched_call(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  // Also ends the watch inside the operator: its inputs are all there now.
  const c10::impl::ExcludeDispatchKeyGuard off(kWatchKey);
  if (OperatorWatch* watch = g_watch.load(std::memory_order_acquire)) {
    Storages used;
    const std::size_t num_arguments = op.schema().arguments().size();
    for (std::size_t i = stack->size() - num_arguments; i < stack->size(); ++i) {
      const c10::IValue& value = (*stack)[i];
      if (value.isTensor()) {
        add_storage(value.toTensor(), used);
      } else if (value.isList()) {
        for (const c10::IValue& item : value.toListRef())
          if (item.isTensor()) add_storage(item.toTensor(), used);
      }
    }
    if (!used.empty()) watch->before(used);
  }
  op.callBoxed(stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&watched_call>());
}

WatchScope::WatchScope(OperatorWatch* watch) {
  OperatorWatch* none = nullptr;
  if (!g_watch.compare_exchange_strong(none, watch))
    throw InternalError("two sharded models are computing in one process");
  c10::impl::tls_set_dispatch_key_included(kWatchKey, true);
}

WatchScope::~WatchScope() {
  c10::impl::tls_set_dispatch_key_included(kWatchKey, false);
  g_watch.store(nullptr);
}

}  // namespace tutti::trainer
