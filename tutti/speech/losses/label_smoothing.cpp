#include "tutti/speech/losses/label_smoothing.h"

#include <torch/torch.h>

#include <cmath>
#include <numeric>

#include "tutti/speech/ops/gpu/smoothed_loss.h"

namespace tutti::speech {

AttentionLoss label_smoothing_loss(const torch::Tensor& logits_BLV, const torch::Tensor& targets_BL,
                                   const Lengths& lengths, double smoothing, bool normalize_length,
                                   const Lengths& begins) {
  const std::int64_t vocabulary = logits_BLV.size(2);
  const std::int64_t num_tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}) -
                                  std::accumulate(begins.begin(), begins.end(), std::int64_t{0});
  if (gpu::can_fuse_smoothed_loss(logits_BLV)) {
    const torch::Device device = logits_BLV.device();
    const auto batch = static_cast<std::int64_t>(lengths.size());
    // Both at once: every copy to a device costs a launch.
    Lengths both = lengths;
    both.insert(both.end(), begins.begin(), begins.end());
    const torch::Tensor there = to_device(both, device);
    const auto parts = static_cast<double>(normalize_length ? num_tokens : batch);
    return gpu::fused_smoothed_loss(
        logits_BLV, targets_BL, there.narrow(0, 0, batch),
        begins.empty() ? torch::Tensor() : there.narrow(0, batch, batch),
        torch::full({1}, 1.0 / parts, torch::TensorOptions(device).dtype(torch::kFloat32)),
        smoothing);
  }
  // Only real tokens are looked at; padded rows would cost a softmax over the vocabulary each.
  const torch::Tensor rows =
      valid_positions(lengths, logits_BLV.size(1), logits_BLV.device(), begins);
  const torch::Tensor logits_MV = logits_BLV.reshape({-1, vocabulary}).index_select(0, rows);
  const torch::Tensor targets_M = targets_BL.reshape({-1}).index_select(0, rows);
  const torch::Tensor log_probs = torch::log_softmax(logits_MV, -1, torch::kFloat32);

  const double rest = vocabulary > 1 ? smoothing / static_cast<double>(vocabulary - 1) : 0.0;
  const double confidence = 1.0 - smoothing;
  const auto entropy_term = [](double p) { return p > 0 ? p * std::log(p) : 0.0; };
  const double constant =
      entropy_term(confidence) + static_cast<double>(vocabulary - 1) * entropy_term(rest);
  torch::Tensor total = log_probs.gather(1, targets_M.unsqueeze(1)).sum() * -(confidence - rest);
  if (rest > 0) total = total - log_probs.sum() * rest;
  total = total + constant * static_cast<double>(num_tokens);

  AttentionLoss result;
  result.loss = total / static_cast<double>(normalize_length ? num_tokens : logits_BLV.size(0));
  result.accuracy = (logits_MV.detach().argmax(-1) == targets_M).to(torch::kFloat32).mean();
  return result;
}

}  // namespace tutti::speech
