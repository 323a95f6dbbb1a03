// Encoders by their ESPnet names: transformer, conformer, e_branchformer.
//
// The output of an utterance does not depend on what it is padded to: subsampled lengths follow the
// convolution arithmetic of each utterance, convolutions see zeros past its end, keys there are
// masked, BatchNorm counts only real frames, and the legacy relative positions (which ESPnet ties
// to the padded length) use each utterance's own length.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/speech/models/attention.h"
#include "tutti/speech/models/ctc.h"
#include "tutti/speech/models/lengths.h"
#include "tutti/speech/models/modules.h"
#include "tutti/speech/models/step_graph.h"
#include "tutti/speech/ops/fused.h"
#include "tutti/speech/ops/gpu/recorded_stack.h"
#include "tutti/trainer/recompute.h"
#include "tutti/trainer/recording.h"

namespace tutti::speech {

// What an encoder gives: frames, their number per utterance, and the frames after chosen blocks.
struct Encoded {
  torch::Tensor out;  // (B, T, D)
  Lengths lengths;
  std::vector<std::pair<std::int64_t, torch::Tensor>> intermediate;  // interCTC: (block, (B, T, D))
};

// What an encoder with cross-attention is told beside the sound (OWSM-CTC).
struct EncoderPrompt {
  torch::Tensor prefix_BPD;   // goes in front of the frames, which then are P more
  torch::Tensor memory_BSD;   // what blocks look at
  torch::Tensor memory_bias;  // (B, 1, 1, S), undefined: no padding
};

// What a batch is padded to, so that few recordings serve a corpus.
struct RecordedShape {
  std::int64_t rows = 0, frames = 0;  // after subsampling
  std::int64_t input_frames = 0;      // before
};

// One block; x (B, T, D).
class EncoderBlock : public torch::nn::Module, public trainer::Recomputable {
 public:
  virtual torch::Tensor forward(const torch::Tensor& x, const BatchContext& context) = 0;
};

// From features to the first block: convolutions that shorten, a projection to D.
class InputLayer : public torch::nn::Module {
 public:
  virtual torch::Tensor forward(const torch::Tensor& features_BTF, const Lengths& lengths) = 0;
  virtual std::int64_t output_length(std::int64_t input_length) const = 0;
  // Feature frames that the shortest allowed utterance has.
  virtual std::int64_t min_input_length() const = 0;
};

class EncoderImpl : public torch::nn::Module, public trainer::Recordable {
 public:
  // `vocab_size` is needed for interctc_use_conditioning only.
  EncoderImpl(Build build, const EncoderSettings& settings, std::int64_t vocab_size);

  // features (B, T, F), zero past the end. `ctc` is needed for self-conditioning only.
  // Throws DataError when an utterance is shorter than min_input_length().
  Encoded forward(const torch::Tensor& features_BTF, const Lengths& lengths,
                  const Ctc& ctc = nullptr, const EncoderPrompt* prompt = nullptr);

  std::int64_t output_length(std::int64_t input_length) const;
  std::int64_t min_input_length() const;
  torch::ScalarType weight_type() const { return after_norm_->weight.scalar_type(); }
  const EncoderSettings& settings() const { return settings_; }

  // Training passes on a GPU are launched as one for each shape; batches are padded to few shapes.
  // Not where a block decides something on the host, or is computed again in the backward pass.
  void set_recording(bool on) override;
  bool can_record() const override;
  std::int64_t num_recorded_passes() const { return recorded_.num_replays(); }

  // For a model that records a step as a whole: what a batch is padded to (empty: it is too large for
  // that to pay), and the pass itself, whose lengths (after subsampling) are device memory.
  // `positions` are position_rows() of as many frames, in the type of products.
  std::optional<RecordedShape> recorded_shape(std::int64_t batch, std::int64_t input_frames);
  torch::Tensor position_rows(std::int64_t frames, const torch::TensorOptions& like);
  torch::Tensor forward_recorded(const torch::Tensor& features_BTF, const torch::Tensor& lengths_B,
                                 const torch::Tensor& positions);
  void check_lengths(const Lengths& lengths) const;  // as forward()

  // Outside training: utterances that the host would launch more slowly than the GPU computes go through
  // the blocks in one launch, recorded for each of few shapes at its second sight. REQUIRES: weights stay as they are, or this is said again.
  void set_replaying(bool on);
  void give_up_replays();  // their memory is wanted
  std::int64_t num_replayed() const { return num_replayed_; }

 private:
  std::int64_t most_input_frames(std::int64_t input_frames, std::int64_t frames) const;
  torch::Tensor of_few_lengths(const torch::Tensor& features_BTF, const Lengths& lengths) const;
  torch::Tensor add_positions(const torch::Tensor& x, const torch::Tensor& positions,
                              BatchContext& context);
  torch::Tensor run_recorded(const torch::Tensor& x, const BatchContext& context);
  void collect_recorded();
  torch::Tensor run_blocks(const RecordedStack::Inputs& in, const Lengths& lengths);
  bool can_replay(const torch::Tensor& x, const EncoderPrompt* prompt) const;
  torch::Tensor run_replayed(const torch::Tensor& x, const BatchContext& context);

  struct Replay {
    RecordedStack::Inputs in;  // that the recording reads
    StepGraph graph;
    std::int64_t last_use = 0;
  };

  EncoderSettings settings_;
  std::shared_ptr<InputLayer> embed_;
  std::vector<std::shared_ptr<EncoderBlock>> blocks_;
  LayerNorm after_norm_{nullptr};
  Linear conditioning_layer_{nullptr};
  PositionTable position_table_;
  RecordedStack recorded_;
  std::vector<torch::Tensor> recorded_parameters_;
  std::int64_t most_recorded_frames_ = 0;  // of a batch: beyond, the GPU is slower than the host
  bool replaying_ = false, may_replay_ = false;
  WeightCasts floats_;  // while replaying
  std::map<std::vector<std::int64_t>, Replay> replays_;
  std::int64_t num_uses_ = 0, num_replayed_ = 0;
  std::int64_t last_frames_ = 0;  // of the utterance before
};
TORCH_MODULE(Encoder);

// Transformer blocks over tokens: reads the text before (OWSM-CTC). x (B, S, P) with positions.
class PromptEncoderImpl : public torch::nn::Module {
 public:
  PromptEncoderImpl(Build build, const EncoderSettings& settings);
  torch::Tensor forward(torch::Tensor x_BSP, const Lengths& lengths);

 private:
  std::vector<std::shared_ptr<EncoderBlock>> blocks_;
  LayerNorm after_norm_{nullptr};
};
TORCH_MODULE(PromptEncoder);

}  // namespace tutti::speech
