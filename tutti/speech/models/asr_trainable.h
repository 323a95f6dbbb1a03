// An AsrModel as the trainer wants it.
//
//   AsrTrainable model(AsrModel(Build{}, settings));
//   trainer::StepOutput out = model.training_step(batch);
//
// A batch holds `speech` (B, N) float, `speech_lengths` (B), `text` (B, L) int64 padded with -1 and
// `text_lengths` (B); of speech-to-text models also text_prev and text_ctc with their lengths (see
// AsrBatch). Lengths should stay on the CPU; if they are on a GPU, reading them waits for
// it. Losses are means over utterances. Validation adds cer_ctc: edits of the best CTC path against
// the text, character by character without spaces, as ESPnet counts them (token by token where the
// spelling of the tokens is not known).
#pragma once

#include "tutti/speech/models/asr_model.h"
#include "tutti/trainer/model.h"

namespace tutti::speech {

class AsrTrainable final : public trainer::ModuleModel {
 public:
  explicit AsrTrainable(AsrModel model, std::vector<std::string> tokens = {});
  trainer::StepOutput training_step(const trainer::Batch& batch) override;
  trainer::StepOutput validation_step(const trainer::Batch& batch) override;
  const AsrModel& model() const { return model_; }

 private:
  // What is compared of a token: its characters, or its number.
  std::vector<std::string> units(const std::vector<std::int64_t>& ids) const;

  AsrModel model_;
  std::vector<std::vector<std::string>> spelling_;  // per token: its characters; empty: not known
};

}  // namespace tutti::speech
