// The first half of decoding: from samples to what the encoder makes of them.
#include <torch/torch.h>

#include <algorithm>
#include <numeric>

#include "tutti/speech/decoding/speech2text.h"
#include "tutti/trainer/out_of_memory.h"

namespace tutti::speech {

// A search over numbers that are not finite finds nothing, or never ends. On the host, when the stream has
// come so far.
torch::Tensor Speech2Text::finite_rows(const Encoded& encoded) const {
  torch::Tensor fine_UT = torch::isfinite(encoded.out).all(-1);
  const torch::Tensor valid_UT = valid_mask(encoded.lengths, fine_UT.size(1), device_);
  if (valid_UT.defined()) fine_UT = fine_UT.logical_or(valid_UT.logical_not());
  torch::Tensor fine_U =
      torch::empty({fine_UT.size(0)}, torch::dtype(torch::kBool).pinned_memory(device_.is_cuda()));
  return fine_U.copy_(fine_UT.all(1), /*non_blocking=*/true);
}

// (items, longest) on the device. Silence up to `longest` is made there: an OWSM window is mostly
// that, and copying it would take longer than encoding it.
torch::Tensor Speech2Text::padded(const std::vector<Waveform>& waveforms,
                                  const std::vector<std::size_t>& items,
                                  std::int64_t longest) const {
  std::int64_t heard = 1;
  for (const std::size_t item : items)
    heard = std::max(heard, std::min(static_cast<std::int64_t>(waveforms[item].size()), longest));
  const auto rows = static_cast<std::int64_t>(items.size());
  torch::Tensor host =
      torch::empty({rows, heard}, torch::dtype(torch::kFloat32).pinned_memory(device_.is_cuda()));
  float* to = host.data_ptr<float>();
  // By few threads: those that read files need the others.
  at::parallel_for(0, rows, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const Waveform samples = waveforms[items[static_cast<std::size_t>(row)]];
      const auto count = std::min(static_cast<std::int64_t>(samples.size()), heard);
      std::copy_n(samples.data(), count, to + row * heard);
      std::fill_n(to + row * heard + count, heard - count, 0.0F);
    }
  });
  // The pinned memory is torch's to reuse, once the copy is over.
  const torch::Tensor speech = host.to(device_, /*non_blocking=*/true);
  return heard < longest ? torch::constant_pad_nd(speech, {0, longest - heard}) : speech;
}

Speech2Text::Heard Speech2Text::hear(const std::vector<Waveform>& waveforms,
                                     const std::vector<std::size_t>& items,
                                     const std::vector<bool>& is_first) {
  const torch::NoGradGuard no_grad;
  const SideStream::Scope beside(encoder_stream_);
  const auto window = static_cast<std::int64_t>(owsm_window() * sample_rate());
  Lengths lengths;
  std::int64_t longest = 0;
  for (std::size_t item : items) {
    lengths.push_back(has_window() ? window : static_cast<std::int64_t>(waveforms[item].size()));
    longest = std::max(longest, lengths.back());
  }
  torch::Tensor speech = padded(waveforms, items, longest);
  if (model_->frontend.is_empty()) {  // features made elsewhere
    const std::int64_t width = model_->settings().input_size;
    speech = speech.view({speech.size(0), longest / width, width});
    for (std::int64_t& length : lengths) length /= width;
  }
  Heard heard;
  if (is_owsm_ctc()) {
    std::vector<bool> knows_previous;
    for (const std::size_t item : items)
      knows_previous.push_back(is_first.empty() || is_first[item]);
    const AsrPrompt prompt = owsm_ctc_prompt(knows_previous);
    heard.encoded = model_->encode(speech, lengths, &prompt);
  } else {
    heard.encoded = model_->encode(speech, lengths);
  }
  heard.is_finite_U = finite_rows(heard.encoded);
  heard.done = encoder_stream_.mark();
  return heard;
}

Encoded Speech2Text::encode(const std::vector<Waveform>& waveforms,
                            const std::vector<std::size_t>& items,
                            const std::vector<bool>& is_first) {
  const Heard heard = hear(waveforms, items, is_first);
  heard.done.wait();
  encoder_stream_.give_to_current(heard.encoded.out);
  return heard.encoded;
}

std::shared_ptr<Speech2Text::Heard> Speech2Text::begin(const std::vector<Waveform>& waveforms) {
  if (!can_begin() || waveforms.empty() || waveforms.size() > options_.batch_size) return nullptr;
  std::size_t longest = 0;
  for (const Waveform waveform : waveforms) {
    if (is_long(waveform)) return nullptr;
    longest = std::max(longest, waveform.size());
  }
  if (options_.batch_seconds > 0 &&
      static_cast<double>(longest * waveforms.size()) > options_.batch_seconds * sample_rate())
    return nullptr;
  std::vector<std::size_t> all(waveforms.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  try {
    return std::make_shared<Heard>(hear(waveforms, all));
  } catch (const std::exception& error) {
    if (!trainer::is_out_of_memory(error)) throw;
    may_begin_ = false;
  }
  return nullptr;
}

}  // namespace tutti::speech
