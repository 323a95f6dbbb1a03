#include "tutti/speech/ops/gpu/search_step.h"

#include "tutti/core/error.h"

#ifdef TUTTI_WITH_CUDA_KERNELS
#include <limits>

#include "tutti/speech/kernels/search_step.h"
#include "tutti/speech/ops/gpu/cuda_ops.h"
#include "tutti/speech/ops/gpu/tools.h"

namespace tutti::speech::gpu {

namespace {

template <class T>
T* data_or_null(const torch::Tensor& x) {
  return x.defined() ? x.data_ptr<T>() : nullptr;
}

}  // namespace

bool can_take_best(const torch::Tensor& log_probs_NV, std::int64_t count) {
  return has_cuda_ops(log_probs_NV) && log_probs_NV.scalar_type() == torch::kFloat32 &&
         log_probs_NV.numel() > 0 && count <= cuda::kMostBest && count <= log_probs_NV.size(1) &&
         log_probs_NV.size(1) < std::numeric_limits<std::int32_t>::max() / 2;
}

TopTokens take_best(const torch::Tensor& log_probs_NV, std::int64_t count,
                    std::optional<std::int64_t> eos) {
  const c10::cuda::CUDAGuard guard(log_probs_NV.device());
  const torch::Tensor log_probs = log_probs_NV.contiguous();
  const std::int64_t rows = log_probs.size(0), columns = count + (eos ? 1 : 0);
  TopTokens top{fresh({rows, columns}, log_probs.options().dtype(torch::kInt64)),
                fresh({rows, columns}, log_probs.options().dtype(torch::kFloat64))};
  cuda::best_tokens({.rows = rows,
                     .vocab = log_probs.size(1),
                     .count = count,
                     .eos_id = eos.value_or(-1),
                     .log_probs = floats(log_probs),
                     .ids = top.ids.data_ptr<std::int64_t>(),
                     .values = top.values.data_ptr<double>()},
                    stream_of(log_probs));
  return top;
}

bool can_choose(const Continuations& from) {
  const torch::Tensor& tokens = from.tokens_UWK;
  const auto fits = [](const torch::Tensor& x) {
    return !x.defined() || (x.scalar_type() == torch::kFloat64 && x.is_contiguous());
  };
  return tokens.is_cuda() && tokens.is_contiguous() && tokens.numel() > 0 &&
         !at::globalContext().deterministicAlgorithms() && tokens.size(1) <= cuda::kMostBest &&
         tokens.size(1) * tokens.size(2) <= cuda::kMostCandidates && fits(from.decoder_UWK) &&
         fits(from.ctc_UWK);
}

Chosen choose(const Continuations& from, const Scores& before, const StepRules& rules) {
  const torch::Tensor& tokens = from.tokens_UWK;
  const c10::cuda::CUDAGuard guard(tokens.device());
  const std::int64_t utterances = tokens.size(0), beam = tokens.size(1);
  const auto ids = [&] { return fresh({utterances, beam}, tokens.options()); };
  const auto like = [](const torch::Tensor& x) { return fresh_like(x); };
  Chosen out;
  out.tokens = ids();
  out.parents = ids();
  out.rows = ids();
  out.ended = like(before.score);
  out.scores.score = like(before.score);
  // A score that is not asked for stays what it was.
  out.scores.decoder = from.decoder_UWK.defined() ? like(before.decoder) : before.decoder;
  out.scores.ctc = from.ctc_UWK.defined() ? like(before.ctc) : before.ctc;
  cuda::KeepBest call;
  call.utterances = utterances;
  call.beam = beam;
  call.width = tokens.size(2);
  call.step = rules.step;
  call.eos_id = rules.eos;
  call.decoder_weight = from.decoder_weight;
  call.ctc_weight = from.ctc_weight;
  call.penalty = from.penalty;
  call.candidates = tokens.data_ptr<std::int64_t>();
  call.decoder = data_or_null<double>(from.decoder_UWK);
  call.ctc = data_or_null<double>(from.ctc_UWK);
  call.score = before.score.data_ptr<double>();
  call.decoder_score = before.decoder.data_ptr<double>();
  call.ctc_score = before.ctc.data_ptr<double>();
  call.max_steps = rules.max_steps_U.data_ptr<std::int64_t>();
  call.min_steps = rules.min_steps_U.data_ptr<std::int64_t>();
  call.tokens = out.tokens.data_ptr<std::int64_t>();
  call.parents = out.parents.data_ptr<std::int64_t>();
  call.rows = out.rows.data_ptr<std::int64_t>();
  call.ended = out.ended.data_ptr<double>();
  call.new_score = out.scores.score.data_ptr<double>();
  call.new_decoder_score = out.scores.decoder.data_ptr<double>();
  call.new_ctc_score = out.scores.ctc.data_ptr<double>();
  if (rules.detects_end) {
    out.best_now = like(rules.best_ended_U);
    out.best_ended = like(rules.best_ended_U);
    call.best_ended = rules.best_ended_U.data_ptr<double>();
    call.best_now = out.best_now.data_ptr<double>();
    call.new_best_ended = out.best_ended.data_ptr<double>();
    for (int i = 0; i < 3; ++i)
      if (rules.earlier_U[i] != nullptr) call.earlier[i] = rules.earlier_U[i]->data_ptr<double>();
    call.margin = rules.margin;
  }
  cuda::keep_best(call, stream_of(tokens));
  return out;
}

}  // namespace tutti::speech::gpu

#else

namespace tutti::speech::gpu {

bool can_take_best(const torch::Tensor&, std::int64_t) { return false; }
TopTokens take_best(const torch::Tensor&, std::int64_t, std::optional<std::int64_t>) {
  throw InternalError("this build has no GPU kernels");
}
bool can_choose(const Continuations&) { return false; }
Chosen choose(const Continuations&, const Scores&, const StepRules&) {
  throw InternalError("this build has no GPU kernels");
}

}  // namespace tutti::speech::gpu
#endif
