#include "tutti/speech/models/asr_model.h"

#include <torch/torch.h>

#include <cmath>

#include "tutti/core/error.h"
#include "tutti/speech/losses/label_smoothing.h"
#include "tutti/speech/losses/transducer_loss.h"
#include "tutti/speech/models/encoder_blocks.h"
#include "tutti/trainer/init.h"

namespace tutti::speech {

namespace {

// Text as the decoder reads it, <sos> y1 y2 .., and as it should answer, y1 y2 .. <eos>; both (B,
// L+1) and filled up with <eos>.
struct DecoderText {
  torch::Tensor in, out;
  Lengths lengths;
  Lengths begins = {};  // positions before are a prompt, which is not learnt
};

DecoderText add_sos_eos(const torch::Tensor& text_BL, const Lengths& lengths, std::int64_t sos,
                        std::int64_t eos) {
  DecoderText text;
  for (const std::int64_t n : lengths) text.lengths.push_back(n + 1);
  torch::Tensor filled = text_BL;
  const torch::Tensor valid = valid_mask(lengths, text_BL.size(1), text_BL.device());
  if (valid.defined()) filled = filled.masked_fill(valid.logical_not(), eos);
  const auto column = [&](std::int64_t id) {
    return torch::full({text_BL.size(0), 1}, id, text_BL.options());
  };
  text.in = torch::cat({column(sos), filled}, 1);
  text.out = torch::cat({filled, column(eos)}, 1);
  return text;
}

// The same after a prompt of its own length: in prompt <sos> y1 y2 .., out (anything) y1 y2 .. <eos>.
// Rows are put together by index, made on the host from lengths alone.
DecoderText add_prompt(const AsrBatch& batch, std::int64_t sos, std::int64_t eos) {
  const torch::Tensor& text = batch.text;
  const std::int64_t prompt_size = max_length(batch.text_prev_lengths), size = text.size(1);
  const std::int64_t at_sos = prompt_size, at_text = prompt_size + 1, at_eos = at_text + size;
  const auto column = [&](std::int64_t id) {
    return torch::full({text.size(0), 1}, id, text.options());
  };
  const torch::Tensor all = torch::cat(
      {batch.text_prev.narrow(1, 0, prompt_size).to(torch::kInt64), column(sos), text, column(eos)},
      1);
  DecoderText out;
  for (std::size_t b = 0; b < batch.text_lengths.size(); ++b) {
    out.begins.push_back(batch.text_prev_lengths[b]);
    out.lengths.push_back(batch.text_prev_lengths[b] + 1 + batch.text_lengths[b]);
  }
  const std::int64_t longest = max_length(out.lengths);
  std::vector<std::int64_t> in, answer;
  for (std::size_t b = 0; b < out.lengths.size(); ++b) {
    const std::int64_t before = out.begins[b], here = batch.text_lengths[b];
    for (std::int64_t t = 0; t < longest; ++t) {
      const std::int64_t said = t - before;  // tokens of the text before position t
      in.push_back(said < 0 ? t : said == 0 ? at_sos : said <= here ? at_text + said - 1 : at_eos);
      answer.push_back(said >= 0 && said < here ? at_text + said : at_eos);
    }
  }
  const auto pick = [&](const std::vector<std::int64_t>& index) {
    return all.gather(1, to_device(index, text.device()).view({text.size(0), longest}));
  };
  out.in = pick(in);
  out.out = pick(answer);
  return out;
}

void check_batch(const AsrBatch& batch) {
  const auto size = static_cast<std::size_t>(batch.speech.size(0));
  if (size == 0 || batch.speech_lengths.size() != size || batch.text_lengths.size() != size ||
      static_cast<std::size_t>(batch.text.size(0)) != size)
    throw InternalError("AsrModel: a batch of " + std::to_string(size) + " utterances came with " +
                        std::to_string(batch.speech_lengths.size()) + " lengths, " +
                        std::to_string(batch.text.size(0)) + " texts and " +
                        std::to_string(batch.text_lengths.size()) + " text lengths");
}

}  // namespace

AsrModelImpl::AsrModelImpl(Build build, AsrSettings settings) : settings_(std::move(settings)) {
  AsrSettings& s = settings_;
  std::int64_t feature_size = s.input_size;
  if (s.use_frontend) {
    frontend = register_module("frontend", LogMel(build, s.frontend));
    feature_size = s.frontend.n_mels;
  }
  if (s.normalize.kind != NormalizeKind::kNone)
    normalize = register_module("normalize", Normalize(build, s.normalize, feature_size));
  s.encoder.input_size = feature_size;
  encoder = register_module("encoder", Encoder(build, s.encoder, s.vocab_size));
  // ESPnet leaves out what its weights make useless.
  if (s.decoder_kind == AsrDecoderKind::kAttention && s.ctc_weight < 1.0) {
    s.decoder.vocab_size = s.vocab_size;
    s.decoder.size = s.encoder.output_size;
    decoder = register_module("decoder", TransformerDecoder(build, s.decoder));
  }
  if (s.decoder_kind == AsrDecoderKind::kTransducer) {
    s.predictor.vocab_size = s.vocab_size;
    predictor = register_module("decoder", Predictor(build, s.predictor));
    joint_network = register_module(
        "joint_network",
        JointNetwork(build, s.vocab_size, s.encoder.output_size, predictor->size(), s.joint));
  }
  if (s.prompt_encoder) {
    const std::int64_t size = s.prompt_encoder->output_size, wide = s.encoder.output_size;
    prompt_encoder = register_module("prompt_encoder", PromptEncoder(build, *s.prompt_encoder));
    prompt_embed_ = register_module("embed", Embedding(build, s.vocab_size, size));
    prompt_positions_ = PositionTable(size);
    if (size != wide) {
      embed_proj_ = register_module("embed_proj", Linear(build, size, wide));
      prompt_proj_ = register_module("prompt_proj", Linear(build, size, wide));
    }
  }
  if (s.ctc_weight != 0.0)
    ctc = register_module("ctc", Ctc(build, s.vocab_size, s.encoder.output_size, s.ctc));
  if (ctc.is_empty() && decoder.is_empty() && joint_network.is_empty())
    throw ConfigError(
        "model_conf.ctc_weight: got 0 without a decoder, so there is nothing to train",
        "set ctc_weight: 1.0 or name a decoder");
  if (build.initialise && !build.device.is_meta()) initialize(*this, s.init);
}

Features AsrModelImpl::extract_features(const torch::Tensor& speech,
                                        const Lengths& speech_lengths) {
  if (!frontend.is_empty()) return frontend->forward(speech, speech_lengths);
  const std::int64_t longest = max_length(speech_lengths);
  const torch::Tensor trimmed = speech.size(1) > longest ? speech.narrow(1, 0, longest) : speech;
  return {zero_padding(trimmed, valid_mask(speech_lengths, longest, speech.device())),
          speech_lengths};
}

void AsrModelImpl::prompt_to(torch::ScalarType type) {
  prompt_encoder->to(type);
  prompt_embed_->to(type);
  if (embed_proj_.is_empty()) return;
  embed_proj_->to(type);
  prompt_proj_->to(type);
}

EncoderPrompt AsrModelImpl::read_prompt(const AsrPrompt& prompt) {
  const torch::Tensor before = prompt_embed_(prompt.previous);
  const double scale = std::sqrt(static_cast<double>(before.size(2)));
  const torch::Tensor memory = prompt_encoder->forward(
      before * scale + prompt_positions_.rows(0, before.size(1), before.options()),
      prompt.previous_lengths);
  EncoderPrompt out;
  out.memory_BSD = prompt_proj_.is_empty() ? memory : prompt_proj_(memory);
  out.memory_bias =
      key_bias(prompt.previous_lengths, out.memory_BSD.size(1), out.memory_BSD.options());
  const torch::Tensor prefix = prompt_embed_(prompt.prefix);
  out.prefix_BPD = embed_proj_.is_empty() ? prefix : embed_proj_(prefix);
  return out;
}

Encoded AsrModelImpl::encode(const torch::Tensor& speech, const Lengths& speech_lengths,
                             const AsrPrompt* prompt) {
  if ((prompt != nullptr) == prompt_encoder.is_empty())
    throw InternalError("AsrModel: a prompt belongs to a model with a prompt encoder");
  const Features features = prepare(speech, speech_lengths);
  if (prompt == nullptr) return encoder->forward(features.values, features.lengths, ctc);
  const EncoderPrompt told = read_prompt(*prompt);
  return encoder->forward(features.values, features.lengths, ctc, &told);
}

Features AsrModelImpl::prepare(const torch::Tensor& speech, const Lengths& speech_lengths) {
  Features features = extract_features(speech, speech_lengths);
  if (is_training() && settings_.specaug) features = spec_augment(features, *settings_.specaug);
  if (!normalize.is_empty()) features = normalize->forward(features);
  // Features are float32; a model cast to bf16 wants them so.
  features.values = features.values.to(encoder->weight_type());
  return features;
}

torch::Tensor AsrModelImpl::ctc_loss(const Encoded& encoded, const AsrBatch& batch,
                                     AsrLoss& result) {
  // A text of nothing stands for one that is not known, as in the translation of a talk.
  std::vector<std::int64_t> known;
  const bool is_s2t = batch.text_ctc.defined();
  for (std::size_t b = 0; is_s2t && b < batch.text_ctc_lengths.size(); ++b)
    if (batch.text_ctc_lengths[b] > 0) known.push_back(static_cast<std::int64_t>(b));
  const auto loss_of = [&](const torch::Tensor& out) {
    if (!is_s2t) return ctc->loss(out, encoded.lengths, batch.text, batch.text_lengths);
    // Still a function of all weights, so that every rank has their gradients.
    if (known.empty()) return 0 * ctc->logits(out.narrow(1, 0, 1)).sum();
    Lengths frames, sizes;
    for (const std::int64_t b : known) {
      frames.push_back(encoded.lengths[static_cast<std::size_t>(b)]);
      sizes.push_back(batch.text_ctc_lengths[static_cast<std::size_t>(b)]);
    }
    const torch::Tensor rows = to_device(known, out.device());
    return ctc->loss(out.index_select(0, rows), frames,
                     batch.text_ctc.to(torch::kInt64).index_select(0, rows), sizes);
  };
  torch::Tensor loss = loss_of(encoded.out);
  result.stats.emplace_back("loss_ctc", loss.detach());
  if (settings_.interctc_weight == 0.0 || encoded.intermediate.empty()) return loss;
  torch::Tensor inner;
  for (const auto& [layer, out] : encoded.intermediate) {
    const torch::Tensor one = loss_of(out);
    result.stats.emplace_back("loss_interctc_layer" + std::to_string(layer), one.detach());
    inner = inner.defined() ? inner + one : one;
  }
  inner = inner / static_cast<double>(encoded.intermediate.size());
  return (1 - settings_.interctc_weight) * loss + settings_.interctc_weight * inner;
}

torch::Tensor AsrModelImpl::attention_loss(const Encoded& encoded, const AsrBatch& batch,
                                           AsrLoss& result) {
  const DecoderText text =
      batch.text_prev.defined()
          ? add_prompt(batch, settings_.sos_id, settings_.eos_id)
          : add_sos_eos(batch.text, batch.text_lengths, settings_.sos_id, settings_.eos_id);
  const torch::Tensor logits =
      decoder->forward(encoded.out, encoded.lengths, text.in, text.lengths);
  const AttentionLoss loss =
      label_smoothing_loss(logits, text.out, text.lengths, settings_.lsm_weight,
                           settings_.length_normalized_loss, text.begins);
  result.stats.emplace_back("loss_att", loss.loss.detach());
  result.stats.emplace_back("acc", loss.accuracy);
  return loss.loss;
}

torch::Tensor AsrModelImpl::transducer_loss(const Encoded& encoded, const AsrBatch& batch) {
  // Blank stands where the text begins, and where it is padded.
  torch::Tensor text = batch.text;
  const torch::Tensor valid = valid_mask(batch.text_lengths, text.size(1), text.device());
  if (valid.defined()) text = text.masked_fill(valid.logical_not(), settings_.blank_id);
  const torch::Tensor start = torch::full({text.size(0), 1}, settings_.blank_id, text.options());
  const torch::Tensor predicted = predictor->forward(torch::cat({start, text}, 1));
  const JointOutput output{joint_network->output_layer()->weight,
                           joint_network->output_layer()->bias, joint_network->activation()};
  return fused_transducer_loss(joint_network->project_encoded(encoded.out),
                               joint_network->project_predicted(predicted), output, text,
                               encoded.lengths, batch.text_lengths, settings_.blank_id)
      .mean();
}

AsrLoss AsrModelImpl::forward(const AsrBatch& batch) {
  check_batch(batch);
  const auto casts = casts_.refresh(*this);
  if (!recorded_.is_on() || !is_training())
    return loss(encode(batch.speech, batch.speech_lengths), batch);
  const Features features = prepare(batch.speech, batch.speech_lengths);
  if (auto recorded = recorded_loss(features, batch)) return std::move(*recorded);
  return loss(encoder->forward(features.values, features.lengths, ctc), batch);
}

AsrLoss AsrModelImpl::loss(const Encoded& encoded, const AsrBatch& given) {
  AsrBatch batch = given;
  const std::int64_t longest = max_length(batch.text_lengths);
  batch.text = batch.text.narrow(1, 0, longest).to(torch::kInt64);

  AsrLoss result;
  result.batch_size = batch.speech.size(0);
  const double weight = settings_.ctc_weight;
  torch::Tensor by_ctc;
  if (!ctc.is_empty()) by_ctc = ctc_loss(encoded, batch, result);
  if (!joint_network.is_empty()) {
    result.loss = transducer_loss(encoded, batch);
    result.stats.emplace_back("loss_transducer", result.loss.detach());
    if (by_ctc.defined()) result.loss = result.loss + weight * by_ctc;
  } else if (decoder.is_empty()) {
    result.loss = by_ctc;
  } else {
    const torch::Tensor by_attention = attention_loss(encoded, batch, result);
    result.loss = by_ctc.defined() ? weight * by_ctc + (1 - weight) * by_attention : by_attention;
  }
  result.stats.emplace_back("loss", result.loss.detach());
  return result;
}

torch::Tensor AsrModelImpl::attention_nll(const Encoded& encoded, const torch::Tensor& text_BL,
                                          const Lengths& text_lengths) {
  const DecoderText text = add_sos_eos(text_BL, text_lengths, settings_.sos_id, settings_.eos_id);
  const torch::Tensor logits =
      decoder->forward(encoded.out, encoded.lengths, text.in, text.lengths);
  const torch::Tensor log_probs = torch::log_softmax(logits, -1, torch::kFloat32);
  const torch::Tensor picked = log_probs.gather(2, text.out.unsqueeze(2)).squeeze(2);
  return -zero_padding(picked, valid_mask(text.lengths, picked.size(1), picked.device())).sum(1);
}

void initialize(AsrModelImpl& model, const std::string& method) {
  if (method.empty()) return;
  trainer::initialize(static_cast<torch::nn::Module&>(model), method);
  torch::NoGradGuard no_grad;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* embedding = dynamic_cast<EmbeddingImpl*>(module.get())) {
      embedding->weight.normal_();
      if (embedding->padding_id() >= 0) embedding->weight[embedding->padding_id()].zero_();
    }
    if (auto* norm = dynamic_cast<LayerNormImpl*>(module.get())) {
      norm->weight.fill_(1);
      norm->bias.zero_();
    }
    if (auto* gate = dynamic_cast<GateInitialization*>(module.get())) gate->initialise_gate();
  }
}

std::int64_t count_parameters(const AsrSettings& settings) {
  AsrSettings without_files = settings;
  without_files.normalize.stats_file.clear();
  const AsrModel model(Build{.device = torch::kMeta}, without_files);
  std::int64_t count = 0;
  for (const auto& parameter : model->parameters()) count += parameter.numel();
  return count;
}

}  // namespace tutti::speech
