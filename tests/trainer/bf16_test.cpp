// bf16 on this machine's CPU, whatever it shows of a tile unit (tutti/core/tiles.h).
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>

#include "tutti/core/subprocess.h"
#include "tutti/core/tiles.h"

namespace tutti {
namespace {

TEST(Bf16, ProductsOfAllSizesAreRightOnThisCpu) {
  for (const int n : {16, 32, 64, 144, 256}) {
    const auto a = torch::randn({n, n}).to(torch::kBFloat16);
    const auto b = torch::randn({n, n}).to(torch::kBFloat16);
    const auto right = torch::matmul(a.to(torch::kFloat), b.to(torch::kFloat));
    EXPECT_TRUE(torch::allclose(torch::matmul(a, b).to(torch::kFloat), right, 0.02, 0.1)) << n;
  }
  const auto x = torch::randn({2, 1, 50, 80}).to(torch::kBFloat16);
  const auto weight = torch::randn({32, 1, 3, 3}).to(torch::kBFloat16);
  const auto right = torch::conv2d(x.to(torch::kFloat), weight.to(torch::kFloat), {}, 2);
  EXPECT_TRUE(torch::allclose(torch::conv2d(x, weight, {}, 2).to(torch::kFloat), right, 0.02, 0.1));
}

// The program's own start has set it, before main().
TEST(Bf16, OneDnnIsLimitedWhereTilesCannotBeUsed) {
  if (const char* expected = std::getenv("TUTTI_TEST_LIMIT")) {
    EXPECT_EQ(onednn_limit(), expected);
    return;
  }
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const auto run = [&](std::map<std::string, std::string> env) {
    env.emplace("DNNL_MAX_CPU_ISA", "");
    env.emplace("ONEDNN_MAX_CPU_ISA", "");
    return run_command({.argv = {self, "--gtest_filter=Bf16.OneDnn*"}, .env = env});
  };
  const bool usable = tile_fault(look_at_tiles()).empty();
  for (const std::map<std::string, std::string>& env :
       {std::map<std::string, std::string>{
            {"TUTTI_TEST_LIMIT", usable ? "" : "DNNL_MAX_CPU_ISA=AVX512_CORE_BF16"}},
        {{"TUTTI_TEST_LIMIT", "DNNL_MAX_CPU_ISA=AVX2"}, {"DNNL_MAX_CPU_ISA", "AVX2"}},
        {{"TUTTI_TEST_LIMIT", "ONEDNN_MAX_CPU_ISA=AVX512_CORE"},
         {"ONEDNN_MAX_CPU_ISA", "AVX512_CORE"}}}) {
    const auto result = run(env);
    EXPECT_TRUE(result.ok()) << result.describe() << result.out;
  }
}

}  // namespace
}  // namespace tutti
