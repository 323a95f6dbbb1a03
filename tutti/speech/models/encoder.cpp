#include "tutti/speech/models/encoder.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/speech/models/encoder_blocks.h"
#include "tutti/trainer/autocast.h"

namespace tutti::speech {

namespace {

// A GPU's work for one block, in parameters x frames, that takes as long as launching the block's
// kernels one by one (measured on an H200 in bf16; on slower GPUs less work would do).
constexpr double kHostBoundWork = 4e10;
constexpr std::size_t kMaxReplays = 32;

bool contains(const std::vector<std::int64_t>& values, std::int64_t value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

// Where the shifted score of (query i, key j) lies in a (T, T+1) matrix of scores with a zero
// column in front, if the utterance ended at its own length instead of T. See attention.cpp.
torch::Tensor make_legacy_index(const Lengths& lengths, std::int64_t frames, torch::Device device) {
  const auto options = torch::TensorOptions(torch::kInt64).device(device);
  const auto i = torch::arange(frames, options).view({1, frames, 1});
  const auto j = torch::arange(frames, options).view({1, 1, frames});
  const auto length = to_device(lengths, device).view({-1, 1, 1});
  const auto width = frames + 1;
  const auto below = i * width + (length - i + j);
  const auto above = (i + 1) * width + (j - i - 1);
  auto index = torch::where(j <= i, below, above);
  const auto zero = (j == i + 1) | (i >= length) | (j >= length);  // column 0 holds the zeros
  return index.masked_fill(zero, 0).view({-1, frames * frames});
}

}  // namespace

EncoderImpl::EncoderImpl(Build build, const EncoderSettings& settings, std::int64_t vocab_size)
    : settings_(settings), position_table_(settings.output_size) {
  if (settings.output_size % settings.attention_heads != 0)
    throw ConfigError(
        "encoder_conf.attention_heads: got " + std::to_string(settings.attention_heads) +
        ", expected a divisor of output_size = " + std::to_string(settings.output_size));
  embed_ = register_module("embed", make_input_layer(build, settings));
  auto list = register_module("encoders", std::make_shared<torch::nn::Module>());
  for (std::int64_t i = 0; i < settings.num_blocks; ++i)
    blocks_.push_back(
        list->register_module(std::to_string(i), make_encoder_block(build, settings, i)));
  after_norm_ = register_module("after_norm", LayerNorm(build, settings.output_size));
  if (settings.interctc_use_conditioning)
    conditioning_layer_ =
        register_module("conditioning_layer", Linear(build, vocab_size, settings.output_size));
}

std::int64_t EncoderImpl::output_length(std::int64_t input_length) const {
  return embed_->output_length(input_length);
}

std::int64_t EncoderImpl::min_input_length() const { return embed_->min_input_length(); }

torch::Tensor EncoderImpl::position_rows(std::int64_t frames, const torch::TensorOptions& like) {
  switch (settings_.positions) {
    case PositionKind::kNone:
      return {};
    case PositionKind::kAbsolute:
      return position_table_.rows(0, frames, like);
    case PositionKind::kRelative: {
      // A GPU multiplies matrices faster when their rows are aligned; what is past position 1-T is
      // never looked at.
      const std::int64_t wanted = 2 * frames - 1;
      const std::int64_t count = like.device().is_cuda() ? (wanted + 7) / 8 * 8 : wanted;
      return position_table_.rows(1 - frames - (count - wanted), count, like).flip(0);
    }
    case PositionKind::kLegacyRelative:
      // ESPnet reads this table from its far end: rows 4999, 4998, ... unless an utterance is
      // longer.
      return position_table_
          .rows(std::max(settings_.max_pos_emb_len, frames) - frames, frames, like)
          .flip(0);
  }
  return {};
}

torch::Tensor EncoderImpl::add_positions(const torch::Tensor& x, const torch::Tensor& positions,
                                         BatchContext& context) {
  const bool training = is_training();
  const double rate = settings_.positional_dropout_rate;
  // What layers add to is kept in the precision of the weights, also where products are not.
  torch::Tensor scaled = x.to(after_norm_->weight.scalar_type());
  if (settings_.scale_input)
    scaled = scaled * std::sqrt(static_cast<double>(settings_.output_size));
  if (settings_.positions == PositionKind::kAbsolute)
    scaled = scaled + positions;
  else if (positions.defined())
    context.positions = as_factor(apply_dropout(positions.unsqueeze(0), rate, training));
  if (settings_.positions == PositionKind::kLegacyRelative && context.valid_BT.defined())
    context.legacy_index = make_legacy_index(context.lengths, x.size(1), x.device());
  return apply_dropout(scaled, rate, training);
}

void EncoderImpl::check_lengths(const Lengths& lengths) const {
  for (std::size_t b = 0; b < lengths.size(); ++b)
    if (lengths[b] < min_input_length())
      throw DataError("utterance " + std::to_string(b) + " of the batch has " +
                          std::to_string(lengths[b]) + " feature frames, " + settings_.input_layer +
                          " needs at least " + std::to_string(min_input_length()),
                      "leave out utterances this short");
}

std::optional<RecordedShape> EncoderImpl::recorded_shape(std::int64_t batch,
                                                         std::int64_t input_frames) {
  if (most_recorded_frames_ == 0) collect_recorded();
  RecordedShape shape;
  shape.rows = rounded_up(batch, 1, 16);
  shape.frames = rounded_up(output_length(input_frames), 8, 16);
  if (shape.rows * shape.frames > most_recorded_frames_) return std::nullopt;
  shape.input_frames = most_input_frames(input_frames, shape.frames);
  return shape;
}

// The most that give so many frames: all shorter ones fit.
std::int64_t EncoderImpl::most_input_frames(std::int64_t input_frames, std::int64_t frames) const {
  while (output_length(input_frames + 1) <= frames) ++input_frames;
  return input_frames;
}

// Libraries choose kernels anew for every shape, which takes longer than a small batch: few lengths serve
// all. Windows are of one length anyway.
torch::Tensor EncoderImpl::of_few_lengths(const torch::Tensor& features_BTF,
                                          const Lengths& lengths) const {
  const std::int64_t given = features_BTF.size(1);
  if (!replaying_ || !features_BTF.is_cuda() || is_training() || lengths.size() == 1 ||
      !settings_.interctc_layer_idx.empty() || all_equal(lengths, given))
    return features_BTF;
  const std::int64_t frames = rounded_up(output_length(given), 8, 4);
  return torch::constant_pad_nd(features_BTF, {0, 0, 0, most_input_frames(given, frames) - given});
}

torch::Tensor EncoderImpl::forward_recorded(const torch::Tensor& features_BTF,
                                            const torch::Tensor& lengths_B,
                                            const torch::Tensor& positions) {
  torch::Tensor x = embed_->forward(features_BTF, {});
  const std::int64_t frames = x.size(1);
  BatchContext context;
  context.lengths.assign(static_cast<std::size_t>(x.size(0)), frames);
  context.valid_BT = valid_mask(lengths_B, frames);
  context.key_bias = key_bias(context.valid_BT, x.options());
  x = add_positions(x, positions, context);
  for (const auto& block : blocks_) x = block->forward(x, context);
  return norm_of(x, after_norm_);
}

Encoded EncoderImpl::forward(const torch::Tensor& features_BTF, const Lengths& lengths,
                             const Ctc& ctc, const EncoderPrompt* prompt) {
  Encoded result;
  std::optional<WeightCasts::Scope> floats;
  if (replaying_ && !is_training()) floats.emplace(&floats_);
  check_lengths(lengths);
  for (const std::int64_t length : lengths) result.lengths.push_back(output_length(length));
  const auto run = [this](std::int64_t layer, torch::nn::Module& module, auto function,
                          const torch::Tensor& x) {
    const auto* block = dynamic_cast<const trainer::Recomputable*>(&module);
    if (!is_training() ||
        !(contains(settings_.gradient_checkpoint_layers, layer) || (block && block->recomputes())))
      return function(x);
    return trainer::checkpointed(function, x, module.parameters());
  };

  const torch::Tensor features =
      prompt == nullptr ? of_few_lengths(features_BTF, lengths) : features_BTF;
  torch::Tensor x = run(
      0, *embed_, [this, lengths](const torch::Tensor& in) { return embed_->forward(in, lengths); },
      features);

  const std::int64_t batch = x.size(0), frames = x.size(1);
  const bool recorded = recorded_.is_on() && is_training() && prompt == nullptr &&
                        batch * frames <= most_recorded_frames_;
  const bool replayed = can_replay(x, prompt);
  BatchContext context;
  if (prompt != nullptr) {
    x = torch::cat({prompt->prefix_BPD.to(x.scalar_type()), x}, 1);
    for (std::int64_t& length : result.lengths) length += prompt->prefix_BPD.size(1);
    context.memory_BSD = prompt->memory_BSD;
    context.memory_bias = prompt->memory_bias;
  }
  context.lengths = result.lengths;
  if (recorded) {
    const std::int64_t rows = rounded_up(batch, 1, 8), columns = rounded_up(frames, 8, 16);
    x = torch::constant_pad_nd(x, {0, 0, 0, columns - frames, 0, rows - batch});
    // Something to look at: a row of no frame would be NaN.
    context.lengths.resize(static_cast<std::size_t>(rows), columns);
  }
  if (replayed && batch == 1) {  // batches are of few lengths already
    // Utterances of one length, windows, need no padding to find their recording.
    if (frames != last_frames_)
      x = torch::constant_pad_nd(x, {0, 0, 0, rounded_up(frames, 8, 16) - frames});
    last_frames_ = frames;
  }
  context.valid_BT = valid_mask(context.lengths, x.size(1), x.device());
  if (context.valid_BT.defined()) {
    context.key_bias = key_bias(context.lengths, x.size(1), x.options());
    if (is_training() && settings_.kind == EncoderKind::kConformer)
      context.valid_index = valid_positions(result.lengths, x.size(1), x.device());
  }
  x = add_positions(x, position_rows(x.size(1), x.options()), context);
  if (recorded) {
    result.out = run_recorded(x, context).narrow(0, 0, batch).narrow(1, 0, frames);
    return result;
  }
  if (replayed) {
    result.out = run_replayed(x, context).narrow(1, 0, output_length(features_BTF.size(1)));
    return result;
  }

  for (std::int64_t i = 0; i < settings_.num_blocks; ++i) {
    if (is_training() && settings_.layer_drop_rate > 0 &&
        torch::rand({1}).item<double>() < settings_.layer_drop_rate)
      continue;
    EncoderBlock& block = *blocks_[i];
    x = run(
        i + 1, block,
        [&block, context](const torch::Tensor& in) { return block.forward(in, context); }, x);
    if (!contains(settings_.interctc_layer_idx, i + 1)) continue;
    // ESPnet normalises intermediate outputs of these two kinds, not of e_branchformer.
    const torch::Tensor out = settings_.kind == EncoderKind::kEBranchformer ? x : after_norm_(x);
    result.intermediate.emplace_back(i + 1, out);
    if (settings_.interctc_use_conditioning) {
      if (ctc.is_empty())
        throw InternalError("encoder: interctc_use_conditioning needs the CTC head");
      const torch::Tensor posteriors = torch::softmax(Ctc(ctc)->logits(out), -1);
      x = x + conditioning_layer_(posteriors);
    }
  }
  result.out = norm_of(x, after_norm_);
  if (features.size(1) > features_BTF.size(1))
    result.out = result.out.narrow(1, 0, output_length(features_BTF.size(1)));
  return result;
}

torch::Tensor EncoderImpl::run_blocks(const RecordedStack::Inputs& in, const Lengths& lengths) {
  BatchContext context;
  context.lengths = lengths;
  context.valid_BT = in.others[0];
  context.key_bias = in.others[1];
  context.positions = in.others[2];
  torch::Tensor x = in.x;
  for (const auto& block : blocks_) x = block->forward(x, context);
  return norm_of(x, after_norm_);
}

torch::Tensor EncoderImpl::run_recorded(const torch::Tensor& x, const BatchContext& context) {
  return recorded_.run(
      {x, {context.valid_BT, context.key_bias, context.positions}}, recorded_parameters_,
      [&](const RecordedStack::Inputs& in) { return run_blocks(in, context.lengths); });
}

bool EncoderImpl::can_replay(const torch::Tensor& x, const EncoderPrompt* prompt) const {
  return replaying_ && may_replay_ && x.is_cuda() &&
         x.size(0) * x.size(1) <= most_recorded_frames_ && prompt == nullptr && !is_training() &&
         !torch::GradMode::is_enabled() && settings_.positions != PositionKind::kLegacyRelative &&
         settings_.interctc_layer_idx.empty() && !trainer::autocast_on(at::kCUDA);
}

torch::Tensor EncoderImpl::run_replayed(const torch::Tensor& x, const BatchContext& context) {
  const RecordedStack::Inputs given{x, {context.valid_BT, context.key_bias, context.positions}};
  const std::vector<std::int64_t> key{
      x.size(0), x.size(1), static_cast<std::int64_t>(x.scalar_type()), context.valid_BT.defined(),
      context.positions.defined() ? context.positions.size(1) : 0};
  if (replays_.size() == kMaxReplays && replays_.count(key) == 0)
    replays_.erase(std::min_element(replays_.begin(), replays_.end(), [](auto& a, auto& b) {
      return a.second.last_use < b.second.last_use;
    }));
  Replay& replay = replays_[key];
  replay.last_use = ++num_uses_;
  const auto write = [](torch::Tensor& to, const torch::Tensor& from) {
    if (!from.defined()) return;
    if (to.defined())
      to.copy_(from);
    else
      to = from.clone();
  };
  try {
    write(replay.in.x, given.x);
    replay.in.others.resize(given.others.size());
    for (std::size_t i = 0; i < given.others.size(); ++i)
      write(replay.in.others[i], given.others[i]);
    const torch::Tensor out =
        replay.graph.run(x.device(), [&] { return run_blocks(replay.in, context.lengths); });
    ++num_replayed_;
    return out.clone();  // the next ones are written to the same place
  } catch (const std::exception& error) {
    // Most likely out of memory, which comes as another error while something is recorded.
    log::info("the encoder's blocks are launched one by one from now on: {}",
              split(error.what(), '\n').front());
    give_up_replays();
  }
  return run_blocks(given, context.lengths);
}

void EncoderImpl::give_up_replays() {
  replays_.clear();
  may_replay_ = false;
}

void EncoderImpl::set_replaying(bool on) {
  replays_.clear();
  replaying_ = may_replay_ = on;
  floats_ = WeightCasts();
  if (on) floats_.keep_floats(*this);
  collect_recorded();
}

bool EncoderImpl::can_record() const {
  // The batch norm of conformers picks the frames that are there, and their number is a shape.
  return settings_.kind != EncoderKind::kConformer &&
         settings_.positions != PositionKind::kLegacyRelative && settings_.layer_drop_rate == 0 &&
         settings_.interctc_layer_idx.empty() && settings_.gradient_checkpoint_layers.empty() &&
         std::none_of(blocks_.begin(), blocks_.end(),
                      [](const auto& block) { return block->recomputes(); });
}

void EncoderImpl::set_recording(bool on) {
  recorded_.set_on(on);
  collect_recorded();
}

void EncoderImpl::collect_recorded() {
  recorded_parameters_ = after_norm_->parameters();
  std::int64_t size = 0;
  for (const auto& block : blocks_)
    for (const torch::Tensor& parameter : block->parameters()) {
      recorded_parameters_.push_back(parameter);
      size += parameter.numel();
    }
  const double per_block = static_cast<double>(size) / static_cast<double>(blocks_.size());
  most_recorded_frames_ = static_cast<std::int64_t>(kHostBoundWork / per_block);
}

PromptEncoderImpl::PromptEncoderImpl(Build build, const EncoderSettings& settings) {
  auto list = register_module("encoders", std::make_shared<torch::nn::Module>());
  for (std::int64_t i = 0; i < settings.num_blocks; ++i)
    blocks_.push_back(
        list->register_module(std::to_string(i), make_encoder_block(build, settings, i)));
  after_norm_ = register_module("after_norm", LayerNorm(build, settings.output_size));
}

torch::Tensor PromptEncoderImpl::forward(torch::Tensor x, const Lengths& lengths) {
  BatchContext context;
  context.lengths = lengths;
  context.valid_BT = valid_mask(lengths, x.size(1), x.device());
  if (context.valid_BT.defined()) context.key_bias = key_bias(lengths, x.size(1), x.options());
  for (const auto& block : blocks_) x = block->forward(x, context);
  return after_norm_(x);
}

}  // namespace tutti::speech
