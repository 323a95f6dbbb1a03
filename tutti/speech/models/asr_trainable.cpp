#include "tutti/speech/models/asr_trainable.h"

#include <torch/torch.h>

#include "tutti/core/error.h"
#include "tutti/speech/metrics/edit_distance.h"
#include "tutti/speech/text/utf8.h"

namespace tutti::speech {

namespace {

Lengths read_lengths(const trainer::Batch& batch, const std::string& name) {
  const torch::Tensor host = batch[name].to(torch::kCPU, torch::kInt64).contiguous();
  return {host.data_ptr<std::int64_t>(), host.data_ptr<std::int64_t>() + host.numel()};
}

AsrBatch to_asr_batch(const trainer::Batch& batch) {
  AsrBatch out{batch["speech"], read_lengths(batch, "speech_lengths"), batch["text"],
               read_lengths(batch, "text_lengths")};
  if (batch.tensors.contains("text_prev")) {
    out.text_prev = batch["text_prev"];
    out.text_prev_lengths = read_lengths(batch, "text_prev_lengths");
    out.text_ctc = batch["text_ctc"];
    out.text_ctc_lengths = read_lengths(batch, "text_ctc_lengths");
  }
  return out;
}

trainer::StepOutput to_output(AsrLoss&& loss) {
  trainer::StepOutput output;
  output.loss = loss.loss;
  output.weight = static_cast<double>(loss.batch_size);
  for (auto& [name, value] : loss.stats) output.stats[name] = value;
  return output;
}

// Tokens of the best CTC path: repeats merged, blanks left out.
std::vector<std::int64_t> best_path(const std::int64_t* ids, std::int64_t frames) {
  std::vector<std::int64_t> tokens;
  for (std::int64_t t = 0; t < frames; ++t)
    if (ids[t] != 0 && (t == 0 || ids[t] != ids[t - 1])) tokens.push_back(ids[t]);
  return tokens;
}

// Spaces and word marks are no characters.
std::vector<std::string> characters(const std::string& token) {
  if (token == "<space>") return {};
  std::vector<std::string> out;
  for (const char32_t c : to_utf32(token))
    if (c != U' ' && c != U'\u2581') out.push_back(to_utf8(std::u32string(1, c)));
  return out;
}

}  // namespace

AsrTrainable::AsrTrainable(AsrModel model, std::vector<std::string> tokens)
    : ModuleModel(model.ptr()), model_(std::move(model)) {
  for (const std::string& token : tokens) spelling_.push_back(characters(token));
}

std::vector<std::string> AsrTrainable::units(const std::vector<std::int64_t>& ids) const {
  std::vector<std::string> out;
  for (const std::int64_t id : ids) {
    if (const auto at = static_cast<std::size_t>(id); at < spelling_.size())
      out.insert(out.end(), spelling_[at].begin(), spelling_[at].end());
    else
      out.push_back(std::to_string(id));
  }
  return out;
}

trainer::StepOutput AsrTrainable::training_step(const trainer::Batch& batch) {
  return to_output(model_->forward(to_asr_batch(batch)));
}

trainer::StepOutput AsrTrainable::validation_step(const trainer::Batch& batch) {
  torch::NoGradGuard no_grad;
  const AsrBatch asr = to_asr_batch(batch);
  const Encoded encoded = model_->encode(asr.speech, asr.speech_lengths);
  trainer::StepOutput output = to_output(model_->loss(encoded, asr));
  if (model_->ctc.is_empty()) return output;
  const torch::Tensor ids =
      model_->ctc->logits(encoded.out).argmax(-1).to(torch::kCPU).contiguous();
  const bool is_s2t = asr.text_ctc.defined();
  const torch::Tensor text =
      (is_s2t ? asr.text_ctc : asr.text).to(torch::kCPU, torch::kInt64).contiguous();
  const Lengths& lengths = is_s2t ? asr.text_ctc_lengths : asr.text_lengths;
  EditCounts counts;
  for (std::int64_t b = 0; b < ids.size(0); ++b) {
    const std::int64_t length = lengths[static_cast<std::size_t>(b)];
    if (is_s2t && length == 0) continue;  // not known
    const std::int64_t* first = text.data_ptr<std::int64_t>() + b * text.size(1);
    counts += align(units({first, first + length}),
                    units(best_path(ids.data_ptr<std::int64_t>() + b * ids.size(1),
                                    encoded.lengths[static_cast<std::size_t>(b)])))
                  .counts;
  }
  output.ratios["cer_ctc"] = {static_cast<double>(counts.errors()),
                              static_cast<double>(counts.reference_size())};
  return output;
}

}  // namespace tutti::speech
