// bf16 on this machine's CPU, whatever it shows of a tile unit (tutti/core/tiles.h) and whatever oneDNN may use of it.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>

#include "tutti/core/subprocess.h"
#include "tutti/core/tiles.h"

namespace tutti {
namespace {

using torch::Tensor;

Tensor random(std::vector<std::int64_t> shape) { return torch::randn(shape).to(torch::kBFloat16); }

Tensor wide(const Tensor& x) { return x.detach().to(torch::kFloat); }

// One rounding to bf16 costs at most 0.39 % of a number, and 0.17 % of many. A sum of 64 numbers in bf16 costs 1 %.
void expect_rounded_once(const Tensor& got, const Tensor& right, const std::string& what) {
  ASSERT_EQ(got.scalar_type(), torch::kBFloat16) << what;
  ASSERT_EQ(got.sizes(), right.sizes()) << what;
  EXPECT_LT(((wide(got) - right).norm() / right.norm()).item<double>(), 0.004) << what;
}

TEST(Bf16, ProductsOfAllSizesAreRightOnThisCpu) {
  torch::manual_seed(1);
  const auto check = [](const Tensor& a, const Tensor& b) {
    const std::string sizes = torch::str(a.sizes(), " x ", b.sizes());
    const Tensor right = torch::matmul(wide(a), wide(b));
    expect_rounded_once(torch::matmul(a, b), right, sizes);
    Tensor out = torch::empty({0}, torch::kBFloat16);
    expect_rounded_once(torch::matmul_out(out, a, b), right, "out of " + sizes);
  };
  for (const int n : {16, 32, 64, 144, 256})
    for (const bool turned : {false, true}) {
      const Tensor square = random({n, n}), a = turned ? square.t() : square;
      check(a, random({n, n}));
      check(a, random({n, n}).t());
      check(a, random({n}));
    }
  check(random({1, 512}), random({512, 8}));          // too small for oneDNN,
  check(random({6, 2, 64}), random({6, 64, 3}));      // as a batch, too,
  check(random({30, 2, 64}), random({30, 64, 3}));    // but not with more of them
  check(random({4, 50, 256}), random({4, 256, 70}));  // attention
  check(random({4, 50, 256}), random({256, 70}));     // a layer
  check(random({500}).abs(), random({500}).abs());
  check(random({5000}).abs(), random({5000}).abs());
  const Tensor a = random({7, 20, 90}), b = random({7, 90, 30});
  expect_rounded_once(torch::einsum("bij,bjk->ik", {a, b}),
                      torch::einsum("bij,bjk->ik", {wide(a), wide(b)}), "einsum");
}

TEST(Bf16, ProductsThatAreAddedAreRightOnThisCpu) {
  torch::manual_seed(2);
  const auto check = [](const std::string& what, const Tensor& c, const Tensor& a, const Tensor& b,
                        auto&& compute, auto&& into, auto&& in_place) {
    const Tensor right = 0.5 * wide(c) + 3 * torch::matmul(wide(a), wide(b));
    expect_rounded_once(compute(c, a, b, 0.5, 3), right, what);
    Tensor out = torch::empty({0}, torch::kBFloat16);
    expect_rounded_once(into(out, c, a, b, 0.5, 3), right, what + " into");
    Tensor sum = c.clone();
    expect_rounded_once(in_place(sum, a, b, 0.5, 3), right, what + " in place");
  };
#define TUTTI_CHECK(sum, c, a, b)                                  \
  check(                                                           \
      #sum, c, a, b, [](auto&&... x) { return torch::sum(x...); }, \
      [](auto&&... x) { return torch::sum##_out(x...); },          \
      [](Tensor& self, auto&&... x) { return self.sum##_(x...); })
  for (const int n : {64, 144}) {
    TUTTI_CHECK(addmv, random({n}), random({n, n}), random({n}));
    TUTTI_CHECK(addmm, random({n, n}), random({n, n}), random({n, n}));
    TUTTI_CHECK(baddbmm, random({3, n, n}), random({3, n, n}), random({3, n, n}));
  }
  TUTTI_CHECK(addmm, random({16, 16}), random({16, 16}), random({16, 16}));
  TUTTI_CHECK(baddbmm, random({3, 2, 2}), random({3, 2, 64}), random({3, 64, 2}));
#undef TUTTI_CHECK
  // What is multiplied by zero is not read.
  const Tensor a = random({20, 90}), b = random({90, 20}), nothing = torch::full_like(a, NAN);
  expect_rounded_once(torch::addmm(nothing.slice(1, 0, 20), a, b, 0), torch::mm(wide(a), wide(b)),
                      "addmm to nothing");
}

// Compares the value and the gradients of a function of bf16 tensors with those of float32.
template <typename Function>
void expect_gradients_right(const std::string& what, std::vector<Tensor> inputs, Function f) {
  std::vector<Tensor> exact;
  for (Tensor& x : inputs) exact.push_back(wide(x).requires_grad_(true)), x.requires_grad_(true);
  const Tensor got = f(inputs), right = f(exact);
  expect_rounded_once(got, right.detach(), what);
  const Tensor grad = random(got.sizes().vec());
  got.backward(grad);
  right.backward(wide(grad));
  for (std::size_t i = 0; i < inputs.size(); ++i)
    expect_rounded_once(inputs[i].grad(), exact[i].grad(),
                        what + ", gradient " + std::to_string(i));
}

TEST(Bf16, LinearsAndTheirGradientsAreRightOnThisCpu) {
  torch::manual_seed(3);
  const auto linear = [](const std::vector<Tensor>& x) { return torch::linear(x[0], x[1], x[2]); };
  expect_gradients_right("linear", {random({40, 96}), random({144, 96}), random({144})}, linear);
  expect_gradients_right("linear of a batch",
                         {random({8, 40, 96}), random({144, 96}), random({144})}, linear);
  expect_gradients_right(
      "attention", {random({8, 50, 64}), random({8, 60, 64})},
      [](const std::vector<Tensor>& x) { return torch::matmul(x[0], x[1].transpose(1, 2)); });
}

TEST(Bf16, ConvolutionsAndTheirGradientsAreRightOnThisCpu) {
  torch::manual_seed(4);
  expect_gradients_right(
      "conv2d", {random({16, 8, 50, 40}), random({32, 8, 3, 3}), random({32})},
      [](const std::vector<Tensor>& x) { return torch::conv2d(x[0], x[1], x[2], 2); });
  expect_gradients_right(
      "conv2d without bias", {random({2, 1, 50, 80}), random({32, 1, 3, 3})},
      [](const std::vector<Tensor>& x) { return torch::conv2d(x[0], x[1], {}, 2); });
  expect_gradients_right(
      "conv1d", {random({16, 48, 70}), random({64, 48, 5}), random({64})},
      [](const std::vector<Tensor>& x) { return torch::conv1d(x[0], x[1], x[2]); });
  expect_gradients_right(
      "depthwise conv1d", {random({16, 48, 70}), random({48, 1, 31}), random({48})},
      [](const std::vector<Tensor>& x) { return torch::conv1d(x[0], x[1], x[2], 1, 15, 1, 48); });
  expect_gradients_right(
      "transposed conv1d", {random({16, 48, 30}), random({48, 32, 5})},
      [](const std::vector<Tensor>& x) { return torch::conv_transpose1d(x[0], x[1], {}, 2); });
}

TEST(Bf16, ProductsOfOtherTypesAreTorchs) {
  const auto two = torch::full({3, 3}, 2, torch::kLong);
  EXPECT_TRUE(torch::equal(torch::mm(two, two), torch::full({3, 3}, 12, torch::kLong)));
  const auto a = torch::randn({20, 30}), b = torch::randn({30, 40});
  EXPECT_TRUE(torch::equal(torch::mm(a, b), torch::addmm(torch::zeros({20, 40}), a, b)));
  EXPECT_THROW(torch::mm(a, b.to(torch::kBFloat16)), c10::Error);
  auto out = torch::empty({0});
  EXPECT_THROW(torch::mm_out(out, random({2, 2}), random({2, 2})), c10::Error);
}

std::map<std::string, std::string> limited(std::map<std::string, std::string> env) {
  env.emplace("DNNL_MAX_CPU_ISA", "");
  env.emplace("ONEDNN_MAX_CPU_ISA", "");
  return env;
}

CommandResult run_again(const std::string& filter, std::map<std::string, std::string> env) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  return run_command({.argv = {self, "--gtest_filter=" + filter}, .env = limited(std::move(env))});
}

// AVX2 is what a processor without AVX-512 is like. Nobody is told of kernels that are replaced.
TEST(Bf16, IsRightUnderEveryLimitOfOneDnn) {
  for (const std::map<std::string, std::string>& env : {std::map<std::string, std::string>{},
                                                        {{"DNNL_MAX_CPU_ISA", "SSE41"}},
                                                        {{"DNNL_MAX_CPU_ISA", "AVX2"}},
                                                        {{"DNNL_MAX_CPU_ISA", "avx2"}},
                                                        {{"DNNL_MAX_CPU_ISA", "AVX512_CORE"}},
                                                        {{"ONEDNN_MAX_CPU_ISA", "AVX2"}},
                                                        {{"ONEDNN_MAX_CPU_ISA", "AVX512_CORE"}}}) {
    const auto result = run_again("Bf16.*OnThisCpu", env);
    EXPECT_TRUE(result.ok()) << (env.empty() ? "" : env.begin()->second) << result.describe()
                             << result.out;
    EXPECT_EQ(result.err, "");
  }
}

// The program's own start has set it, before main().
TEST(Bf16, OneDnnIsLimitedWhereTilesCannotBeUsed) {
  if (const char* expected = std::getenv("TUTTI_TEST_LIMIT")) {
    EXPECT_EQ(onednn_limit(), expected);
    return;
  }
  const bool usable = tile_fault(look_at_tiles()).empty();
  for (const std::map<std::string, std::string>& env :
       {std::map<std::string, std::string>{
            {"TUTTI_TEST_LIMIT", usable ? "" : "DNNL_MAX_CPU_ISA=AVX512_CORE_BF16"}},
        {{"TUTTI_TEST_LIMIT", "DNNL_MAX_CPU_ISA=AVX2"}, {"DNNL_MAX_CPU_ISA", "AVX2"}},
        {{"TUTTI_TEST_LIMIT", "ONEDNN_MAX_CPU_ISA=AVX512_CORE"},
         {"ONEDNN_MAX_CPU_ISA", "AVX512_CORE"}}}) {
    const auto result = run_again("Bf16.OneDnn*", env);
    EXPECT_TRUE(result.ok()) << result.describe() << result.out;
  }
}

}  // namespace
}  // namespace tutti
