// OWSM-CTC: a window's prompt, and long recordings in windows that share context, as ESPnet's
// Speech2TextGreedySearch does it.
#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/speech/decoding/speech2text.h"

namespace tutti::speech {
namespace {

// A pause, or enough for one line: where a segment of a long recording ends.
constexpr double kPause = 0.5;     // seconds
constexpr double kLongest = 10.0;  // seconds

}  // namespace

void Speech2Text::check_owsm_ctc() const {
  require_language(codec_.tokens(), options_.lang_sym, "lang_sym");
  require_task(codec_.tokens(), options_.task_sym);
  if (codec_.tokens().find(options_.owsm.not_available) < 0)
    throw DataError(fmt::format("token list: no token {} (na_symbol)", options_.owsm.not_available),
                    "give the token list of an OWSM-CTC model");
  if (options_.predict_time)
    throw ConfigError("predict_time: got true, but OWSM-CTC says no times",
                      "leave it out; token_times gives those of its tokens");
  if (2 * options_.context_len_in_secs >= owsm_window())
    throw ConfigError(
        fmt::format("context_len_in_secs: got {}, expected less than half of the "
                    "window's {} s",
                    options_.context_len_in_secs, owsm_window()));
}

AsrPrompt Speech2Text::owsm_ctc_prompt(const std::vector<bool>& knows_previous) const {
  const TokenList& tokens = codec_.tokens();
  const std::int64_t unknown = tokens.find(options_.owsm.not_available);
  std::vector<std::int64_t> before;
  if (options_.text_prev) {
    const std::vector<int> ids = codec_.encode(*options_.text_prev).ids;
    before.assign(ids.begin(), ids.end());
  }
  if (before.empty() || std::find(before.begin(), before.end(), unknown) != before.end())
    before = {unknown};
  const auto count = static_cast<std::int64_t>(knows_previous.size());
  const auto width = static_cast<std::int64_t>(before.size());
  AsrPrompt out;
  std::vector<std::int64_t> prefix, previous;
  for (const bool knows : knows_previous) {
    prefix.push_back(tokens.find(options_.lang_sym));
    prefix.push_back(tokens.find(options_.task_sym));
    std::vector<std::int64_t> row = before;
    if (!knows) {
      row.assign(before.size(), model_->settings().eos_id);  // masked
      row[0] = unknown;
    }
    previous.insert(previous.end(), row.begin(), row.end());
    out.previous_lengths.push_back(knows ? width : 1);
  }
  out.prefix = to_device(prefix, device_).view({count, 2});
  out.previous = to_device(previous, device_).view({count, width});
  return out;
}

// Windows overlap by the context on both sides; the frames between are kept, those of all windows are
// put together, and only then repeats are joined. All windows of all recordings share batches.
std::vector<Recognised> Speech2Text::decode_with_context(const std::vector<Waveform>& waveforms) {
  const double rate = model_->settings().frontend.fs;
  const double context_s = options_.context_len_in_secs;
  const auto window = static_cast<std::size_t>(owsm_window() * rate);
  const auto context = static_cast<std::size_t>(context_s * rate);
  const std::size_t step = window - 2 * context;
  std::vector<std::vector<float>> padded;
  std::vector<Waveform> windows;
  std::vector<std::size_t> recording_of;
  std::vector<bool> is_first;
  for (std::size_t r = 0; r < waveforms.size(); ++r) {
    std::vector<float>& samples = padded.emplace_back(waveforms[r].size() + 2 * context);
    std::copy(waveforms[r].begin(), waveforms[r].end(),
              samples.begin() + static_cast<std::ptrdiff_t>(context));
    for (std::size_t begin = 0; begin < samples.size(); begin += step) {
      const std::size_t size = std::min(window, samples.size() - begin);
      windows.push_back(Waveform(samples).subspan(begin, size));
      recording_of.push_back(r);
      is_first.push_back(begin == 0);
      if (size < window) break;  // filled up with zeros: the last one
    }
  }

  // The best token of every frame that is kept, window by window.
  const auto frames_in = [this](double seconds) {  // 30 / 0.08 may be a little less than 375
    return static_cast<std::int64_t>(seconds / seconds_per_frame_ + 1e-6);
  };
  const std::int64_t all = frames_in(owsm_window()), beside = frames_in(context_s);
  const std::int64_t kept = all - 2 * beside;
  std::vector<std::vector<std::int64_t>> best(windows.size());
  in_batches(std::vector<std::int64_t>(windows.size(), static_cast<std::int64_t>(window)),
             [&](const std::vector<std::size_t>& items) {
               const torch::NoGradGuard no_grad;
               const Encoded encoded = encode(windows, items, is_first);
               const torch::Tensor ids = model_->ctc->logits(encoded.out)
                                             .argmax(-1)
                                             .narrow(1, beside, kept)
                                             .to(torch::kCPU)
                                             .contiguous();
               for (std::size_t i = 0; i < items.size(); ++i) {
                 const auto* row =
                     ids.data_ptr<std::int64_t>() + static_cast<std::int64_t>(i) * kept;
                 best[items[i]].assign(row, row + kept);
               }
             });

  std::vector<Recognised> out(waveforms.size());
  for (Recognised& result : out) result.nbest.emplace_back();
  struct Said {
    double begin = 0, end = 0;
    std::vector<std::int64_t> ids;
  };
  std::vector<std::vector<Said>> said(waveforms.size());
  std::vector<std::int64_t> last(waveforms.size(), -1);
  std::vector<std::size_t> frame(waveforms.size(), 0);
  for (std::size_t w = 0; w < windows.size(); ++w) {
    const std::size_t r = recording_of[w];
    Recognition& whole = out[r].nbest[0];
    // The last window goes on in zeros: what is heard there belongs to the end of the recording.
    const double length = static_cast<double>(waveforms[r].size()) / rate;
    for (const std::int64_t id : best[w]) {
      const double begin = std::min(length, frame_time(frame[r]));
      const double end = std::min(length, frame_time(++frame[r]));
      const bool repeats = id == std::exchange(last[r], id);
      if (id == model_->settings().blank_id) continue;
      if (repeats) {
        whole.times.back().end = end;
        said[r].back().end = end;
        continue;
      }
      const bool is_over = begin >= length;
      if (said[r].empty() || (!is_over && (begin - said[r].back().end >= kPause ||
                                           end - said[r].back().begin >= kLongest)))
        said[r].push_back({begin, end, {}});
      said[r].back().end = end;
      said[r].back().ids.push_back(id);
      whole.times.push_back({begin, end});
      whole.token_ids.push_back(static_cast<int>(id));
    }
  }
  for (std::size_t r = 0; r < out.size(); ++r) {
    Recognition& whole = out[r].nbest[0];
    const Recognition spelled = finish({whole.token_ids.begin(), whole.token_ids.end()});
    whole.tokens = spelled.tokens;
    whole.text = spelled.text;
    whole.full_text = spelled.full_text;
    whole.language = options_.lang_sym;
    if (!options_.token_times) whole.times.clear();
    for (const Said& part : said[r]) {
      std::string text = finish(part.ids).text;
      if (!text.empty()) out[r].segments.push_back({part.begin, part.end, std::move(text)});
    }
  }
  return out;
}

}  // namespace tutti::speech
