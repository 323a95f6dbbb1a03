// Matrix products use what this processor has, and stay right.
#include "tutti/trainer/cpu/processor.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>

namespace tutti::trainer {
namespace {

bool products_are_right() {
  torch::manual_seed(1);
  const torch::Tensor a = torch::randn({67, 131}), b = torch::randn({131, 93});
  return torch::allclose(a.matmul(b), a.to(torch::kFloat64).matmul(b.to(torch::kFloat64)).to(a),
                         1e-5, 1e-5);
}

TEST(Processor, AnUnknownOneIsNotTakenForAPentium) {
  const std::string at_start = matrix_kernels();
  EXPECT_TRUE(products_are_right());
  setenv("OPENBLAS_CORETYPE", at_start.c_str(), 1);
  choose_matrix_kernels();
  EXPECT_EQ(matrix_kernels(), at_start) << "who sets OPENBLAS_CORETYPE decides";
  unsetenv("OPENBLAS_CORETYPE");

  choose_matrix_kernels();
  EXPECT_TRUE(products_are_right());
  EXPECT_EQ(std::getenv("OPENBLAS_CORETYPE"), nullptr) << "children may run elsewhere";
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    EXPECT_NE(matrix_kernels(), "Prescott");
  }
#endif
}

std::int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

TEST(Processor, ATensorGetsMemoryThatWasFreedBeforeIt) {
  keep_freed_memory();
  const std::int64_t num_pages = (64 << 20) / sysconf(_SC_PAGESIZE);
  const auto fill = [] { torch::ones({16, 1 << 20}).sum(); };  // 64 MiB
  constexpr int kTimes = 20;  // the first few leave small things in the middle of what they free
  const std::int64_t before = page_faults();
  for (int i = 0; i < kTimes; ++i) fill();
  EXPECT_LT(page_faults() - before, kTimes * num_pages / 2);
}

}  // namespace
}  // namespace tutti::trainer
