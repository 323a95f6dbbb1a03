// A training step's forward and backward pass as one recording each: from features to losses, with
// lengths, masks, texts and weights of utterances as device data.
#include <torch/torch.h>

#include "tutti/speech/models/asr_model.h"
#include "tutti/speech/ops/gpu/ctc.h"
#include "tutti/speech/ops/gpu/cuda_ops.h"
#include "tutti/speech/ops/gpu/smoothed_loss.h"
#include "tutti/trainer/autocast.h"

namespace tutti::speech {

namespace {

// Inputs besides features, and the rows of kLengths.
enum Input : std::size_t { kLengths, kWeights, kText, kFramePositions, kTokenPositions, kInputs };
enum LengthOf : std::int64_t { kFrames, kCtcText, kDecoderText };

constexpr std::int64_t kMostPlaces = 512;  // of a text that is recorded

// Counts of each utterance, and of rows that are padding: those have frames to look at, as a row of
// no frame would be NaN, and no text.
torch::Tensor lengths_of_rows(const EncoderImpl& encoder, const Features& features,
                              const Lengths& text_lengths, const RecordedShape& shape) {
  torch::Tensor lengths = torch::zeros({3, shape.rows}, torch::kInt64);
  auto at = lengths.accessor<std::int64_t, 2>();
  for (std::int64_t b = 0; b < shape.rows; ++b) at[kFrames][b] = shape.frames;
  for (std::size_t i = 0; i < text_lengths.size(); ++i) {
    const auto b = static_cast<std::int64_t>(i);
    at[kFrames][b] = encoder.output_length(features.lengths[i]);
    at[kCtcText][b] = text_lengths[i];
    at[kDecoderText][b] = text_lengths[i] + 1;
  }
  return lengths;
}

// What the loss of each row is multiplied with, and at the end the sum over tokens.
torch::Tensor weights_of_rows(const Lengths& text_lengths, std::int64_t rows, bool by_tokens) {
  torch::Tensor weights = torch::zeros({rows + 1}, torch::kFloat32);
  auto at = weights.accessor<float, 1>();
  const auto size = static_cast<double>(text_lengths.size());
  double tokens = 0;
  for (std::size_t i = 0; i < text_lengths.size(); ++i) {
    at[static_cast<std::int64_t>(i)] = static_cast<float>(1.0 / size);
    tokens += static_cast<double>(text_lengths[i] + 1);
  }
  at[rows] = static_cast<float>(1.0 / (by_tokens ? tokens : size));
  return weights;
}

}  // namespace

bool AsrModelImpl::can_record() const {
  return encoder->can_record() && joint_network.is_empty() && prompt_encoder.is_empty() &&
         (decoder.is_empty() || decoder->can_record());
}

void AsrModelImpl::set_recording(bool on) {
  recorded_.set_on(on);
  trained_.clear();
  for (const torch::Tensor& parameter : parameters())
    if (on && parameter.requires_grad()) trained_.push_back(parameter);
}

torch::Tensor AsrModelImpl::losses_of(const RecordedStack::Inputs& in) {
  const torch::Tensor &lengths = in.others[kLengths], &text = in.others[kText];
  const std::int64_t rows = lengths.size(1);
  const torch::Tensor weights = in.others[kWeights].narrow(0, 0, rows),
                      scale = in.others[kWeights].narrow(0, rows, 1);
  const torch::Tensor encoded =
      encoder->forward_recorded(in.x, lengths.select(0, kFrames), in.others[kFramePositions]);
  std::vector<torch::Tensor> results(1);
  torch::Tensor loss;
  const double weight = settings_.ctc_weight;
  if (!ctc.is_empty()) {
    const torch::Tensor by_ctc =
        (ctc->losses(encoded, lengths.narrow(0, kFrames, 2), text) * weights).sum();
    results.push_back(by_ctc.detach());
    loss = decoder.is_empty() ? by_ctc : weight * by_ctc;
  }
  if (!decoder.is_empty()) {
    const torch::Tensor valid = valid_mask(lengths.select(0, kFrames), encoded.size(1));
    const torch::Tensor spoken = valid_mask(lengths.select(0, kCtcText), text.size(1));
    const torch::Tensor filled = text.masked_fill(spoken.logical_not(), settings_.eos_id);
    const auto column = [&](std::int64_t id) { return torch::full({rows, 1}, id, text.options()); };
    const torch::Tensor logits = decoder->forward_masked(
        encoded, key_bias(valid, in.others[kTokenPositions].options()),
        torch::cat({column(settings_.sos_id), filled}, 1), in.others[kTokenPositions]);
    const AttentionLoss att =
        gpu::fused_smoothed_loss(logits, torch::cat({filled, column(settings_.eos_id)}, 1),
                                 lengths.select(0, kDecoderText), {}, scale, settings_.lsm_weight);
    results.push_back(att.loss.detach());
    results.push_back(att.accuracy);
    loss = loss.defined() ? loss + (1 - weight) * att.loss : att.loss;
  }
  results[0] = loss;
  return torch::stack(results);
}

std::optional<AsrLoss> AsrModelImpl::recorded_loss(const Features& features,
                                                   const AsrBatch& batch) {
  const torch::Device device = features.values.device();
  const std::int64_t size = batch.speech.size(0), longest = max_length(batch.text_lengths);
  const std::int64_t places = rounded_up(longest + 1, 16, 4);  // with <sos> or <eos>
  if (!has_cuda_ops(features.values) || batch.text_prev.defined() || places > kMostPlaces)
    return std::nullopt;
  encoder->check_lengths(features.lengths);
  const std::int64_t frames = features.values.size(1);
  const auto shape = encoder->recorded_shape(size, frames);
  if (!shape) return std::nullopt;

  RecordedStack::Inputs in;
  in.x = torch::constant_pad_nd(features.values,
                                {0, 0, 0, shape->input_frames - frames, 0, shape->rows - size});
  in.others.resize(kInputs);
  in.others[kLengths] = lengths_of_rows(*encoder, features, batch.text_lengths, *shape);
  in.others[kWeights] =
      weights_of_rows(batch.text_lengths, shape->rows, settings_.length_normalized_loss);
  in.others[kText] =
      torch::constant_pad_nd(batch.text.to(device).narrow(1, 0, longest).to(torch::kInt64),
                             {0, places - 1 - longest, 0, shape->rows - size});
  const auto type =
      trainer::autocast_on(at::kCUDA) ? trainer::autocast_type(at::kCUDA) : encoder->weight_type();
  in.others[kFramePositions] =
      encoder->position_rows(shape->frames, torch::TensorOptions(device).dtype(type));
  if (!decoder.is_empty()) in.others[kTokenPositions] = decoder->position_rows(places);

  const torch::Tensor results = recorded_.run(
      in, trained_, [this](const RecordedStack::Inputs& inputs) { return losses_of(inputs); });

  AsrLoss out;
  out.batch_size = size;
  out.loss = results.select(0, 0);
  const torch::Tensor values = results.detach();
  std::int64_t i = 1;
  if (!ctc.is_empty()) out.stats.emplace_back("loss_ctc", values.select(0, i++));
  if (!decoder.is_empty()) {
    out.stats.emplace_back("loss_att", values.select(0, i++));
    out.stats.emplace_back("acc", values.select(0, i++));
  }
  out.stats.emplace_back("loss", values.select(0, 0));
  return out;
}

}  // namespace tutti::speech
