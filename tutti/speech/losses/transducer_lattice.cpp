#include "tutti/speech/losses/transducer_lattice.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <vector>

namespace tutti::speech {

namespace {

constexpr double kLogZero = -std::numeric_limits<double>::infinity();

double log_add(double a, double b) {
  if (a < b) std::swap(a, b);
  return b == kLogZero ? a : a + std::log1p(std::exp(b - a));
}

// One utterance of T frames and U tokens; rows of the inputs have `stride` and stride - 1 entries.
template <class T>
double flows_of_utterance(const T* blank, const T* token, std::int64_t frames, std::int64_t tokens,
                          std::int64_t stride, T* blank_flow, T* token_flow) {
  const std::int64_t width = tokens + 1;
  const auto node = [width](std::int64_t t, std::int64_t u) { return t * width + u; };
  const auto blank_at = [&](std::int64_t t, std::int64_t u) {
    return static_cast<double>(blank[t * stride + u]);
  };
  const auto token_at = [&](std::int64_t t, std::int64_t u) {
    return static_cast<double>(token[t * (stride - 1) + u]);
  };
  std::vector<double> ahead(frames * width), behind(frames * width);
  for (std::int64_t t = 0; t < frames; ++t) {
    for (std::int64_t u = 0; u < width; ++u) {
      double sum = t == 0 && u == 0 ? 0.0 : kLogZero;
      if (t > 0) sum = ahead[node(t - 1, u)] + blank_at(t - 1, u);
      if (u > 0) sum = log_add(sum, ahead[node(t, u - 1)] + token_at(t, u - 1));
      ahead[node(t, u)] = sum;
    }
  }
  for (std::int64_t t = frames - 1; t >= 0; --t) {
    for (std::int64_t u = tokens; u >= 0; --u) {
      double sum = t == frames - 1 && u == tokens ? blank_at(t, u) : kLogZero;
      if (t + 1 < frames) sum = behind[node(t + 1, u)] + blank_at(t, u);
      if (u < tokens) sum = log_add(sum, behind[node(t, u + 1)] + token_at(t, u));
      behind[node(t, u)] = sum;
    }
  }
  const double total = behind[0];
  for (std::int64_t t = 0; t < frames; ++t) {
    for (std::int64_t u = 0; u < width; ++u) {
      double after_blank = t + 1 < frames ? behind[node(t + 1, u)] : (u == tokens ? 0.0 : kLogZero);
      blank_flow[t * stride + u] =
          static_cast<T>(std::exp(ahead[node(t, u)] + blank_at(t, u) + after_blank - total));
      if (u < tokens)
        token_flow[t * (stride - 1) + u] = static_cast<T>(
            std::exp(ahead[node(t, u)] + token_at(t, u) + behind[node(t, u + 1)] - total));
    }
  }
  return -total;
}

template <class T>
LatticeFlows flows_on_cpu(const torch::Tensor& blank, const torch::Tensor& token,
                          const Lengths& frames, const Lengths& tokens) {
  LatticeFlows flows{torch::empty({blank.size(0)}, blank.options()), torch::zeros_like(blank),
                     torch::zeros_like(token)};
  const std::int64_t stride = blank.size(2), rows = blank.size(1);
  at::parallel_for(0, blank.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b)
      flows.loss_B.data_ptr<T>()[b] = static_cast<T>(flows_of_utterance<T>(
          blank.data_ptr<T>() + b * rows * stride, token.data_ptr<T>() + b * rows * (stride - 1),
          frames[b], tokens[b], stride, flows.blank_flow.data_ptr<T>() + b * rows * stride,
          flows.token_flow.data_ptr<T>() + b * rows * (stride - 1)));
  });
  return flows;
}

}  // namespace

// Anti-diagonals n = t + u: all nodes of one depend only on the one before, so T + U steps of
// (B, U+1) vectors do the whole batch. Works on any device.
LatticeFlows lattice_flows_by_diagonals(const torch::Tensor& blank, const torch::Tensor& token,
                                        const Lengths& frames, const Lengths& tokens) {
  const std::int64_t batch = blank.size(0), T = blank.size(1), width = blank.size(2),
                     diagonals = T + width - 1;
  const auto options = torch::TensorOptions(torch::kInt64).device(blank.device());
  const auto frame_count = to_device(frames, blank.device()).view({-1, 1, 1});
  const auto token_count = to_device(tokens, blank.device()).view({-1, 1, 1});
  const auto n = torch::arange(diagonals, options).view({1, -1, 1});
  const auto u = torch::arange(width, options).view({1, 1, -1});
  const auto t = n - u;
  const auto inside = (t >= 0) & (t < frame_count) & (u <= token_count);
  const auto source = t.clamp(0, T - 1).expand({batch, diagonals, width});
  const auto wide = torch::cat({token, torch::full({batch, T, 1}, kLogZero, token.options())}, 2);
  const auto skewed_blank = blank.gather(1, source).masked_fill(inside.logical_not(), kLogZero);
  const auto token_inside = inside & (u < token_count);
  const auto skewed_token =
      wide.gather(1, source).masked_fill(token_inside.logical_not(), kLogZero);
  const auto zero_column = torch::full({batch, 1}, kLogZero, blank.options());

  std::vector<torch::Tensor> ahead(diagonals), behind(diagonals);
  ahead[0] = torch::full({batch, width}, kLogZero, blank.options());
  ahead[0].select(1, 0).zero_();
  for (std::int64_t i = 1; i < diagonals; ++i) {
    const auto by_blank = ahead[i - 1] + skewed_blank.select(1, i - 1);
    const auto by_token = ahead[i - 1] + skewed_token.select(1, i - 1);
    ahead[i] =
        torch::logaddexp(by_blank, torch::cat({zero_column, by_token.narrow(1, 0, width - 1)}, 1));
  }
  const auto is_last = (t == frame_count - 1) & (u == token_count);
  torch::Tensor next = torch::full({batch, width}, kLogZero, blank.options());
  for (std::int64_t i = diagonals - 1; i >= 0; --i) {
    // The last blank of an utterance leads out of the lattice, where the sum is one.
    const auto after_blank = next.masked_fill(is_last.select(1, i), 0.0);
    const auto after_token = torch::cat({next.narrow(1, 1, width - 1), zero_column}, 1);
    behind[i] = torch::logaddexp(after_blank + skewed_blank.select(1, i),
                                 after_token + skewed_token.select(1, i));
    next = behind[i];
  }
  const auto total = behind[0].select(1, 0).view({-1, 1, 1});
  const auto alpha = torch::stack(ahead, 1), beta = torch::stack(behind, 1);
  const auto end = torch::full({batch, 1, width}, kLogZero, blank.options());
  const auto beta_next = torch::cat({beta.narrow(1, 1, diagonals - 1), end}, 1);
  const auto after_blank = beta_next.masked_fill(is_last, 0.0);
  const auto after_token =
      torch::cat({beta_next.narrow(2, 1, width - 1),
                  torch::full({batch, diagonals, 1}, kLogZero, blank.options())},
                 2);
  const auto flow = [&](const torch::Tensor& arcs, const torch::Tensor& after) {
    const auto value = (alpha + arcs + after - total).exp();
    // Back from diagonals to frames: (t, u) lies on diagonal t + u.
    const auto back = (torch::arange(T, options).view({1, -1, 1}) + u).expand({batch, T, width});
    return torch::nan_to_num(value, 0.0).gather(1, back);
  };
  const auto frame_inside = torch::arange(T, options).view({1, -1, 1}) < frame_count;
  LatticeFlows flows;
  flows.loss_B = -total.view({-1});
  flows.blank_flow = flow(skewed_blank, after_blank).masked_fill(frame_inside.logical_not(), 0.0);
  flows.token_flow = flow(skewed_token, after_token)
                         .masked_fill(frame_inside.logical_not(), 0.0)
                         .narrow(2, 0, width - 1);
  return flows;
}

LatticeFlows lattice_flows(const torch::Tensor& blank_BTU, const torch::Tensor& token_BTU,
                           const Lengths& frames, const Lengths& tokens) {
  const torch::Tensor blank = blank_BTU.contiguous(), token = token_BTU.contiguous();
  if (blank.device().is_cpu() && blank.scalar_type() == torch::kFloat32)
    return flows_on_cpu<float>(blank, token, frames, tokens);
  if (blank.device().is_cpu() && blank.scalar_type() == torch::kFloat64)
    return flows_on_cpu<double>(blank, token, frames, tokens);
  return lattice_flows_by_diagonals(blank, token, frames, tokens);
}

}  // namespace tutti::speech
