#include "tutti/trainer/cpu/processor.h"

#include <dlfcn.h>
#include <malloc.h>

#include <cstdlib>

namespace tutti::trainer {

namespace {

constexpr const char* kCoreVariable = "OPENBLAS_CORETYPE";

// Looked up by name: libtorch brings OpenBLAS or another library, and nobody links it.
template <typename Function>
Function* find_function(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

// OpenBLAS's name for kernels that this processor can run, or null: the oldest ones will do.
const char* best_kernels() {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return "SkylakeX";
  if (avx2) return "Haswell";
#endif
  return nullptr;
}

}  // namespace

std::string matrix_kernels() {
  auto* name = find_function<char*()>("openblas_get_corename");
  return name == nullptr ? "" : name();
}

void choose_matrix_kernels() {
  const char* best = best_kernels();
  auto* leave = find_function<void()>("gotoblas_dynamic_quit");
  auto* enter = find_function<void()>("gotoblas_dynamic_init");
  // "Prescott" is what OpenBLAS calls a processor that it does not know; it had no AVX2.
  if (best == nullptr || leave == nullptr || enter == nullptr || matrix_kernels() != "Prescott" ||
      std::getenv(kCoreVariable) != nullptr)
    return;
  setenv(kCoreVariable, best, 1);
  leave();
  enter();
  unsetenv(kCoreVariable);  // a worker on another machine must not inherit it
}

void keep_freed_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
}

}  // namespace tutti::trainer
