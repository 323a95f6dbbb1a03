// A speech recogniser as ESPnet builds it: frontend, augmentation, normalisation, encoder, and CTC,
// an attention decoder, both, or a transducer.
//
//   AsrModel model(Build{}, read_asr_settings(config, problems));           // model_config.h
//   model->eval();
//   Encoded encoded = model->encode(speech_BN, num_samples);
//   auto ctc_log_probs = model->ctc->log_probs(encoded.out);                 // (B, T, V)
//   DecoderCache cache = model->decoder->start(encoded.out, encoded.lengths, beam);
//
// named_parameters() and named_buffers() together have the keys of ESPnet's state_dict. Not
// thread-safe: position tables grow during a forward pass.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/speech/frontend/log_mel.h"
#include "tutti/speech/frontend/normalize.h"
#include "tutti/speech/frontend/spec_augment.h"
#include "tutti/speech/models/ctc.h"
#include "tutti/speech/models/decoder.h"
#include "tutti/speech/models/encoder.h"
#include "tutti/speech/models/transducer.h"
#include "tutti/speech/ops/fused.h"

namespace tutti::speech {

// A padded training batch. text is (B, L) int64, padded with -1 (or anything).
struct AsrBatch {
  torch::Tensor speech;  // (B, N) samples, or (B, T, F) features without a frontend
  Lengths speech_lengths;
  torch::Tensor text;
  Lengths text_lengths;
  // Speech-to-text models (OWSM) alone; else undefined. The decoder reads text_prev (<sop> and the
  // text before, or nothing) and then <sos> text; CTC learns text_ctc, where there is one.
  torch::Tensor text_prev = {};  // (B, P)
  Lengths text_prev_lengths = {};
  torch::Tensor text_ctc = {};  // (B, C)
  Lengths text_ctc_lengths = {};
};

// What a model with a prompt encoder (OWSM-CTC) is told about each utterance.
struct AsrPrompt {
  torch::Tensor prefix;    // (B, 2) int64: language and task
  torch::Tensor previous;  // (B, S) int64: the text before, <na> where there is none
  Lengths previous_lengths;
};

// Mean over utterances, and what to log: loss, loss_ctc, loss_att, acc, loss_transducer,
// loss_interctc_layerN; all 0-dim, detached, still on the device.
struct AsrLoss {
  torch::Tensor loss;
  std::vector<std::pair<std::string, torch::Tensor>> stats;
  std::int64_t batch_size = 0;
};

class AsrModelImpl : public torch::nn::Module, public trainer::Recordable {
 public:
  AsrModelImpl(Build build, AsrSettings settings);

  AsrLoss forward(const AsrBatch& batch);
  // The losses alone, for a batch that is encoded already.
  AsrLoss loss(const Encoded& encoded, const AsrBatch& batch);
  // REQUIRES: a prompt exactly if the model has a prompt encoder.
  Encoded encode(const torch::Tensor& speech, const Lengths& speech_lengths,
                 const AsrPrompt* prompt = nullptr);
  // Frontend only: what collect_stats counts.
  Features extract_features(const torch::Tensor& speech, const Lengths& speech_lengths);
  // Minus log-probability of each text (with <eos>) by the attention decoder, (B).
  torch::Tensor attention_nll(const Encoded& encoded, const torch::Tensor& text_BL,
                              const Lengths& text_lengths);

  // Training steps on a GPU are launched as one, from features to losses, for each shape; batches are
  // padded to few shapes. Where that cannot be, the encoder may still record its part.
  void set_recording(bool on) override;
  bool can_record() const override;
  std::int64_t num_recorded_passes() const {
    return recorded_.num_replays() + encoder->num_recorded_passes();
  }

  // The parts that read a prompt, to the encoder's type.
  void prompt_to(torch::ScalarType type);

  const AsrSettings& settings() const { return settings_; }

  // Public because search combines them in its own way. Null when the model has none.
  LogMel frontend{nullptr};
  Normalize normalize{nullptr};
  Encoder encoder{nullptr};
  Ctc ctc{nullptr};
  TransformerDecoder decoder{nullptr};
  Predictor predictor{nullptr};  // registered as "decoder", as ESPnet does
  JointNetwork joint_network{nullptr};
  PromptEncoder prompt_encoder{nullptr};

 private:
  torch::Tensor attention_loss(const Encoded& encoded, const AsrBatch& batch, AsrLoss& result);
  torch::Tensor ctc_loss(const Encoded& encoded, const AsrBatch& batch, AsrLoss& result);
  torch::Tensor transducer_loss(const Encoded& encoded, const AsrBatch& batch);

  EncoderPrompt read_prompt(const AsrPrompt& prompt);
  // Features as the encoder reads them.
  Features prepare(const torch::Tensor& speech, const Lengths& speech_lengths);
  // recorded_asr.cpp; empty: not this batch.
  std::optional<AsrLoss> recorded_loss(const Features& features, const AsrBatch& batch);
  torch::Tensor losses_of(const RecordedStack::Inputs& in);

  AsrSettings settings_;
  Embedding prompt_embed_{nullptr};
  Linear embed_proj_{nullptr}, prompt_proj_{nullptr};  // null: widths are equal
  PositionTable prompt_positions_;
  WeightCasts casts_;
  RecordedStack recorded_;
  std::vector<torch::Tensor> trained_;  // parameters, while steps are recorded
};
TORCH_MODULE(AsrModel);

// Parameters of the model, without making it. Buffers are not counted.
std::int64_t count_parameters(const AsrSettings& settings);

// ESPnet's `init`: the named distribution for matrices, zero biases, defaults for embeddings and
// norms, near-identity gates for cgMLP. "" keeps torch's defaults.
void initialize(AsrModelImpl& model, const std::string& method);

}  // namespace tutti::speech
