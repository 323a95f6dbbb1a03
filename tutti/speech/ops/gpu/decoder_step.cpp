#include "tutti/speech/ops/gpu/decoder_step.h"

#include <cmath>

#ifdef TUTTI_WITH_CUDA_KERNELS
#include <ATen/cuda/CUDAContext.h>

#include "tutti/speech/kernels/few_rows.h"
#include "tutti/speech/ops/gpu/tools.h"

namespace tutti::speech::gpu {

namespace {

bool is_read_in_packs(const torch::Tensor& x, torch::ScalarType type) {
  return x.defined() && x.scalar_type() == type && x.is_contiguous() &&
         reinterpret_cast<std::uintptr_t>(x.data_ptr()) % 16 == 0;
}

cuda::Outputs outputs_of(const StepLinear& linear, const torch::Tensor& y) {
  return {linear.weight.data_ptr(), linear.bias.data_ptr(), y.data_ptr()};
}

// Those that are wanted and can be had.
StepJoins possible_joins(const StepDecoder& decoder, StepJoins wanted) {
  const cuda::Number type = number_of(decoder.embedding);
  const std::int64_t size = decoder.embedding.size(1), head_size = size / decoder.heads;
  return {.past = wanted.past && cuda::can_norm_attend_past(type, size, head_size),
          .memory = wanted.memory && cuda::can_norm_attend_memory(type, size, head_size)};
}

// The kernels of a step, one after the other.
class Step {
 public:
  Step(const StepDecoder& decoder, const StepState& state, StepJoins wanted)
      : decoder_(decoder),
        state_(state),
        joins_(possible_joins(decoder, wanted)),
        type_(number_of(decoder.embedding)),
        stream_(stream_of(decoder.embedding)),
        rows_(state.tokens.size(0)),
        size_(decoder.embedding.size(1)) {
    const auto like = decoder.embedding.options();
    const std::int64_t hidden = decoder.layers[0].w_1.weight.size(0);
    x_ = fresh({rows_, size_}, floats_like(decoder.embedding));
    for (torch::Tensor* y : {&q_, &k_, &v_, &said_}) *y = fresh({rows_, size_}, like);
    hidden_ = fresh({rows_, hidden}, like);
  }

  torch::Tensor run() {
    cuda::embed_rows(type_,
                     {.rows = rows_,
                      .size = size_,
                      .tokens = state_.tokens.data_ptr<std::int64_t>(),
                      .position = state_.position.data_ptr<std::int64_t>(),
                      .embedding = decoder_.embedding.data_ptr(),
                      .table = state_.table.data_ptr(),
                      .scale = std::sqrt(static_cast<float>(size_)),
                      .x = x_.data_ptr<float>()},
                     stream_);
    for (std::size_t i = 0; i < decoder_.layers.size(); ++i)
      run_layer(decoder_.layers[i], static_cast<std::int64_t>(i));
    torch::Tensor logits =
        fresh({rows_, decoder_.output.weight.size(0)}, floats_like(decoder_.embedding));
    cuda::NormProducts call = describe(decoder_.after_norm, {{&decoder_.output, &logits}});
    call.float_y = true;
    cuda::norm_products(type_, call, stream_);
    if (!cuda::can_log_softmax_rows(logits.size(1))) return torch::log_softmax(logits, -1);
    cuda::log_softmax_rows(logits.data_ptr<float>(), rows_, logits.size(1), stream_);
    return logits;
  }

 private:
  struct Product {
    const StepLinear* linear;
    const torch::Tensor* y;
  };

  cuda::NormProducts describe(const StepNorm& norm, const std::vector<Product>& products) const {
    cuda::NormProducts call;
    call.rows = rows_;
    call.in = size_;
    call.out = products[0].linear->weight.size(0);
    call.x = x_.data_ptr<float>();
    call.norm_weight = norm.weight.data_ptr();
    call.norm_bias = norm.bias.data_ptr();
    call.eps = static_cast<float>(norm.eps);
    call.count = static_cast<int>(products.size());
    for (std::size_t i = 0; i < products.size(); ++i)
      call.outputs[i] = outputs_of(*products[i].linear, *products[i].y);
    return call;
  }

  void add(const torch::Tensor& from, const StepLinear& linear) {
    cuda::add_product(type_,
                      {.rows = rows_,
                       .in = linear.weight.size(1),
                       .out = size_,
                       .x = from.data_ptr(),
                       .output = outputs_of(linear, x_)},
                      stream_);
  }

  void attend_past(const StepLayer& layer, const torch::Tensor& past) {
    const cuda::NormProducts products =
        describe(layer.self_norm, {{&layer.q, &q_}, {&layer.k, &k_}, {&layer.v, &v_}});
    const cuda::AttendPast attend{.size = {.rows = rows_,
                                           .heads = past.size(2),
                                           .capacity = past.size(3),
                                           .head_size = past.size(4)},
                                  .q = q_.data_ptr(),
                                  .k = k_.data_ptr(),
                                  .v = v_.data_ptr(),
                                  .k_cache = past[0].data_ptr(),
                                  .v_cache = past[1].data_ptr(),
                                  .ancestors = state_.ancestors.data_ptr<std::int32_t>(),
                                  .position = state_.position.data_ptr<std::int64_t>(),
                                  .out = said_.data_ptr()};
    if (joins_.past) return cuda::norm_attend_past(type_, products, attend, stream_);
    cuda::norm_products(type_, products, stream_);
    cuda::attend_past_few(type_, attend, stream_);
  }

  void attend_memory(const StepLayer& layer, const torch::Tensor& memory) {
    const cuda::NormProducts products = describe(layer.memory_norm, {{&layer.memory_q, &q_}});
    const cuda::AttendMemory attend{
        .utterances = memory.size(1),
        .queries = rows_ / memory.size(1),
        .heads = memory.size(2),
        .frames = memory.size(3),
        .head_size = memory.size(4),
        .q = q_.data_ptr(),
        .keys = memory[0].data_ptr(),
        .values = memory[1].data_ptr(),
        .bias = state_.memory_bias.defined() ? state_.memory_bias.data_ptr() : nullptr,
        .out = said_.data_ptr()};
    if (joins_.memory) return cuda::norm_attend_memory(type_, products, attend, stream_);
    cuda::norm_products(type_, products, stream_);
    cuda::attend_memory(type_, attend, stream_);
  }

  void run_layer(const StepLayer& layer, std::int64_t index) {
    attend_past(layer, state_.self_kv[index]);
    add(said_, layer.out);
    attend_memory(layer, state_.memory_kv[index]);
    add(said_, layer.memory_out);
    cuda::NormProducts call = describe(layer.feed_forward_norm, {{&layer.w_1, &hidden_}});
    call.relu = true;
    cuda::norm_products(type_, call, stream_);
    add(hidden_, layer.w_2);
  }

  const StepDecoder& decoder_;
  const StepState& state_;
  StepJoins joins_;
  cuda::Number type_;
  cuda::Stream stream_;
  std::int64_t rows_, size_;
  torch::Tensor x_, q_, k_, v_, said_, hidden_;
};

}  // namespace

static_assert(kMostStepRows <= cuda::kMostFewRows);

bool can_step_few_rows(const StepDecoder& decoder) {
  const torch::Tensor& embedding = decoder.embedding;
  if (decoder.layers.empty() || !embedding.is_cuda()) return false;
  const torch::ScalarType type = embedding.scalar_type();
  const std::int64_t size = embedding.size(1);
  if (type != torch::kBFloat16 && type != torch::kFloat16) return false;
  if (!cuda::few_rows_known(size, /*with_norm=*/true) ||
      !cuda::few_queries_known(size / decoder.heads))
    return false;
  bool fits = true;
  const auto check = [&](const auto& parameters) {
    for (const torch::Tensor* x : {&parameters.weight, &parameters.bias})
      fits = fits && is_read_in_packs(*x, type);
  };
  for (const StepLayer& layer : decoder.layers) {
    for (const StepLinear* linear : {&layer.q, &layer.k, &layer.v, &layer.out, &layer.memory_q,
                                     &layer.memory_out, &layer.w_1, &layer.w_2})
      check(*linear);
    for (const StepNorm* norm : {&layer.self_norm, &layer.memory_norm, &layer.feed_forward_norm})
      check(*norm);
    fits = fits && cuda::few_rows_known(layer.w_2.weight.size(1), /*with_norm=*/false);
  }
  check(decoder.after_norm);
  check(decoder.output);
  return fits;
}

torch::Tensor step_few_rows(const StepDecoder& decoder, const StepState& state,
                            std::optional<StepJoins> joins) {
  const c10::cuda::CUDAGuard guard(decoder.embedding.device());
  // Joined with its norm, attention to the memory takes one row after the other.
  constexpr std::int64_t kMostJoinedRows = 2;
  return Step(decoder, state,
              joins.value_or(StepJoins{.memory = state.tokens.size(0) <= kMostJoinedRows}))
      .run();
}

std::size_t most_kept_bytes(torch::Device device) {
  constexpr std::size_t kPart = 32;
  return at::cuda::getDeviceProperties(device.index())->totalGlobalMem / kPart;
}

}  // namespace tutti::speech::gpu

#else

#include "tutti/core/error.h"

namespace tutti::speech::gpu {

bool can_step_few_rows(const StepDecoder&) { return false; }
torch::Tensor step_few_rows(const StepDecoder&, const StepState&, std::optional<StepJoins>) {
  throw InternalError("this build has no GPU kernels");
}
std::size_t most_kept_bytes(torch::Device) { return 0; }

}  // namespace tutti::speech::gpu
#endif
