#include "tutti/speech/kernels/gemm.h"

#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>

#include "tutti/speech/kernels/device.cuh"

namespace tutti::speech::cuda {
namespace {

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string("cuBLASLt: ") + what + ": status " +
                             std::to_string(static_cast<int>(status)));
}

cudaDataType data_type(Number number) {
  switch (number) {
    case Number::kHalf:
      return CUDA_R_16F;
    case Number::kBFloat16:
      return CUDA_R_16BF;
    case Number::kFloat:
      break;
  }
  return CUDA_R_32F;
}

// How to do products of one size.
struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

// Device, sizes, flags and the alignment of the operands.
using Key = std::tuple<int, std::int64_t, std::int64_t, std::int64_t, int, int>;

std::uint32_t alignment_of(std::initializer_list<const void*> pointers) {
  std::uintptr_t all = 256;
  for (const void* pointer : pointers) all |= reinterpret_cast<std::uintptr_t>(pointer);
  return static_cast<std::uint32_t>(all & (~all + 1));  // the lowest bit
}

// cuBLASLt counts column by column; read so, our matrices are transposed, and d' = b' a'.
Plan describe(const Gemm& call, bool with_bias) {
  Plan plan;
  check(cublasLtMatmulDescCreate(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "operation");
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulDescSetAttribute(plan.operation, attribute, &value, sizeof(value)),
          "attribute");
  };
  const cublasOperation_t first = call.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t second = call.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  set(CUBLASLT_MATMUL_DESC_TRANSA, first);
  set(CUBLASLT_MATMUL_DESC_TRANSB, second);
  if (with_bias) set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
  const auto layout = [](cublasLtMatrixLayout_t* to, Number type, std::int64_t rows,
                         std::int64_t columns) {
    check(cublasLtMatrixLayoutCreate(to, data_type(type), static_cast<std::uint64_t>(rows),
                                     static_cast<std::uint64_t>(columns), rows),
          "layout");
  };
  layout(&plan.a, call.in, call.transpose_b ? call.k : call.n, call.transpose_b ? call.n : call.k);
  layout(&plan.b, call.in, call.transpose_a ? call.m : call.k, call.transpose_a ? call.k : call.m);
  layout(&plan.d, call.out, call.n, call.m);
  return plan;
}

void ask(cublasLtHandle_t handle, Plan& plan, std::uint32_t alignment, std::size_t bytes) {
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "preference");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
          "preference");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, bytes);
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    prefer(attribute, alignment);
  cublasLtMatmulHeuristicResult_t best{};
  int found = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle, plan.operation, plan.a, plan.b, plan.d, plan.d,
                                       preference, 1, &best, &found),
        "heuristic");
  cublasLtMatmulPreferenceDestroy(preference);
  if (found == 0) throw std::runtime_error("cuBLASLt: no way to multiply these matrices");
  plan.algorithm = best.algo;
}

void forget(Plan& plan) {
  cublasLtMatmulDescDestroy(plan.operation);
  for (cublasLtMatrixLayout_t layout : {plan.a, plan.b, plan.d})
    cublasLtMatrixLayoutDestroy(layout);
}

// Up to a power of two or one and a half times it; few rows are as they are.
std::int64_t about(std::int64_t rows) {
  std::int64_t power = 256;
  if (rows <= power) return rows;
  while (power < rows) power *= 2;
  return rows <= power / 4 * 3 ? power / 4 * 3 : power;
}

// Whether the algorithm, which was asked for a larger product, does this one.
bool serves(cublasLtHandle_t handle, const Plan& plan, std::size_t bytes) {
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(handle, plan.operation, plan.a, plan.b, plan.d, plan.d,
                                 &plan.algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= bytes;
}

constexpr std::size_t kMaxPlans = 4096;  // every length of a batch has its own forty

// Kept for the life of the process: a thread may end after the driver has.
struct Plans {
  std::map<int, cublasLtHandle_t> handles;
  std::map<Key, Plan> plans;
  std::map<Key, cublasLtMatmulAlgo_t> of_others;  // by about() as many rows
};
Plans& plans_of_thread() {
  thread_local Plans* plans = new Plans;
  return *plans;
}

}  // namespace

void gemm(const Gemm& call, const void* a, const void* b, const void* bias, void* d,
          void* workspace, std::size_t bytes, Stream stream) {
  int device = 0;
  cudaGetDevice(&device);
  Plans& known = plans_of_thread();
  cublasLtHandle_t& handle = known.handles[device];
  if (handle == nullptr) check(cublasLtCreate(&handle), "create");
  const std::uint32_t alignment = alignment_of({a, b, d});
  const int flags = call.transpose_a + 2 * call.transpose_b + 4 * (bias != nullptr) +
                    8 * static_cast<int>(call.in) + 32 * static_cast<int>(call.out);
  const Key key{device, call.m, call.n, call.k, flags, static_cast<int>(alignment)};
  auto found = known.plans.find(key);
  if (found == known.plans.end() && known.plans.size() >= kMaxPlans) {
    for (auto& [old, plan] : known.plans) forget(plan);
    known.plans.clear();
    found = known.plans.end();
  }
  if (found == known.plans.end()) {
    Plan plan = describe(call, bias != nullptr);
    bool is_known = false;
    if (call.as_others) {
      Gemm other = call;
      other.m = about(call.m);
      const Key others{device, other.m, call.n, call.k, flags, static_cast<int>(alignment)};
      auto asked = known.of_others.find(others);
      if (asked == known.of_others.end()) {
        Plan larger = describe(other, bias != nullptr);
        ask(handle, larger, alignment, bytes);
        asked = known.of_others.emplace(others, larger.algorithm).first;
        forget(larger);
      }
      plan.algorithm = asked->second;
      is_known = serves(handle, plan, bytes);
    }
    if (!is_known) ask(handle, plan, alignment, bytes);
    found = known.plans.emplace(key, plan).first;
  }
  const Plan& plan = found->second;
  if (bias != nullptr)
    check(cublasLtMatmulDescSetAttribute(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                         sizeof(bias)),
          "bias");
  const float one = 1, zero = 0;
  check(cublasLtMatmul(handle, plan.operation, &one, b, plan.a, a, plan.b,
                       call.accumulate ? &one : &zero, d, plan.d, d, plan.d, &plan.algorithm,
                       workspace, bytes, stream),
        "matmul");
}

}  // namespace tutti::speech::cuda
