#include "tutti/speech/decoding/asr_search.h"

#include <torch/torch.h>

#include <exception>

#include "tutti/core/error.h"

namespace tutti::speech {
namespace {

class DecoderScorer : public StepScorer {
 public:
  DecoderScorer(TransformerDecoder decoder, const torch::Tensor& memory, const Lengths& lengths,
                std::int64_t beam)
      : decoder_(std::move(decoder)), cache_(decoder_->start(memory, lengths, beam)) {}
  ~DecoderScorer() override {
    // What an error has left half done is not for the next search.
    if (std::uncaught_exceptions() == exceptions_) decoder_->keep(std::move(cache_));
  }
  torch::Tensor step(const torch::Tensor& tokens) override {
    return decoder_->step(tokens, cache_);
  }
  void reorder(const torch::Tensor& parents_N) override { cache_.reorder(parents_N); }
  void select_utterances(const torch::Tensor& utterances) override {
    decoder_->keep(cache_.select_utterances(utterances));
  }

 private:
  TransformerDecoder decoder_;
  DecoderCache cache_;
  const int exceptions_ = std::uncaught_exceptions();
};

class LmScorer : public StepScorer {
 public:
  LmScorer(LanguageModel lm, std::int64_t beam) : lm_(std::move(lm)), beam_(beam) {}
  torch::Tensor step(const torch::Tensor& tokens) override { return lm_->step(tokens, state_); }
  void reorder(const torch::Tensor& parents_N) override { state_.reorder(parents_N); }
  void select_utterances(const torch::Tensor& utterances) override {
    const torch::Tensor lanes = torch::arange(beam_, utterances.options());
    state_.reorder((utterances.unsqueeze(1) * beam_ + lanes.unsqueeze(0)).flatten());
  }

 private:
  LanguageModel lm_;
  LmState state_;
  std::int64_t beam_;
};

}  // namespace

SearchModel search_model(const AsrModel& model, const LanguageModel& lm) {
  SearchModel out;
  if (lm) out.start_lm = [lm](std::int64_t beam) { return std::make_unique<LmScorer>(lm, beam); };
  out.vocab_size = model->settings().vocab_size;
  out.sos = model->settings().sos_id;
  out.eos = model->settings().eos_id;
  out.blank = model->settings().blank_id;
  if (!model->decoder.is_empty()) {
    out.start_decoder = [decoder = model->decoder](const torch::Tensor& memory,
                                                   const Lengths& lengths, std::int64_t beam) {
      return std::make_unique<DecoderScorer>(decoder, memory, lengths, beam);
    };
  }
  if (!model->ctc.is_empty())
    out.ctc_log_probs = [ctc = model->ctc](const torch::Tensor& memory) mutable {
      return ctc->log_probs(memory);
    };
  return out;
}

TransducerModel transducer_model(const AsrModel& model) {
  if (model->predictor.is_empty() || model->joint_network.is_empty())
    throw ConfigError("transducer search: the model has no transducer decoder");
  return {model->predictor, model->joint_network, model->settings().blank_id};
}

}  // namespace tutti::speech
