#include "tutti/speech/decoding/speech2text.h"

#include <fmt/format.h>
#include <torch/torch.h>
#ifdef TUTTI_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <algorithm>
#include <cmath>
#include <new>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/speech/decoding/asr_search.h"
#include "tutti/speech/decoding/batching.h"
#include "tutti/speech/decoding/ctc_search.h"

namespace tutti::speech {
namespace {

torch::Device parse_device(const std::string& name) {
  try {
    torch::Device device(name);
    if (device.is_cuda() && !torch::cuda::is_available())
      throw ConfigError(fmt::format("device: got {}, but libtorch sees no GPU here", name),
                        "set device: cpu");
    return device;
  } catch (const c10::Error&) {
    throw ConfigError(fmt::format("device: got '{}', expected cpu, cuda or cuda:N", name));
  }
}

torch::ScalarType parse_dtype(const std::string& name) {
  if (name == "float32") return torch::kFloat32;
  if (name == "bfloat16") return torch::kBFloat16;
  if (name == "float16") return torch::kFloat16;
  if (name == "float64") return torch::kFloat64;
  throw ConfigError(
      fmt::format("dtype: got '{}', expected float32, bfloat16, float16 or float64", name));
}

// Samples between two encoder frames.
std::int64_t samples_per_frame(const AsrModel& model) {
  // Far from the edges, 4800 feature frames (a multiple of every subsampling factor) give 4800 /
  // factor.
  const std::int64_t out =
      model->encoder->output_length(14400) - model->encoder->output_length(9600);
  const std::int64_t factor = out > 0 ? 4800 / out : 1;
  return factor * (model->frontend.is_empty() ? 1 : model->settings().frontend.hop_length);
}

int sample_rate(const AsrModel& model) { return model->settings().frontend.fs; }

LogProbs rows_of(const torch::Tensor& log_probs_TV, std::int64_t frames) {
  return {log_probs_TV.data_ptr<float>(), static_cast<std::size_t>(frames),
          static_cast<std::size_t>(log_probs_TV.size(1))};
}

}  // namespace

bool is_out_of_memory(const std::exception& error) noexcept {
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  // The CPU allocator and cuBLAS throw plain errors; their words are all there is.
  const std::string_view words = error.what();
  for (std::string_view sign : {"can't allocate memory", "not enough memory", "out of memory",
                                "CUBLAS_STATUS_ALLOC_FAILED"})
    if (words.find(sign) != std::string_view::npos) return true;
  return false;
}

Speech2Text::Speech2Text(AsrModel model, TextCodec codec, Speech2TextOptions options)
    : model_(std::move(model)),
      codec_(std::move(codec)),
      options_(std::move(options)),
      device_(parse_device(options_.device)) {
  if (codec_.tokens().size() != model_->settings().vocab_size)
    throw ConfigError(fmt::format("token list: got {} tokens, the model has {} outputs",
                                  codec_.tokens().size(), model_->settings().vocab_size),
                      "use the token list the model was trained with");
  if (options_.batch_size < 1) throw ConfigError("batch_size: got 0, expected at least 1");
  const torch::ScalarType dtype = parse_dtype(options_.dtype);
  model_->eval();
  model_->to(device_);
  // The frontend and the statistics stay in float32: the encoder takes its features in its own
  // type.
  model_->encoder->to(dtype);
  if (!model_->ctc.is_empty()) model_->ctc->to(dtype);
  if (!model_->decoder.is_empty()) model_->decoder->to(dtype);
  if (!model_->predictor.is_empty()) model_->predictor->to(dtype);
  if (!model_->joint_network.is_empty()) model_->joint_network->to(dtype);

  if (is_owsm()) owsm_ = std::make_unique<OwsmTokens>(codec_.tokens());
  if (!model_->decoder.is_empty()) {
    BeamSearchOptions search{.beam_size = options_.beam_size,
                             .ctc_weight = options_.ctc_weight,
                             .penalty = options_.penalty,
                             .maxlenratio = options_.maxlenratio,
                             .minlenratio = options_.minlenratio,
                             .normalize_length = options_.normalize_length,
                             .nbest = options_.nbest};
    if (is_owsm())
      search.prompt = owsm_->prompt({.language = options_.lang_sym,
                                     .task = options_.task_sym,
                                     .timestamps = options_.predict_time});
    beam_search_ = std::make_unique<BeamSearch>(search_model(model_), std::move(search));
  } else if (!is_transducer() && model_->ctc.is_empty()) {
    throw ConfigError("the model has neither a decoder nor CTC: there is nothing to decode with");
  }
  seconds_per_frame_ = static_cast<double>(samples_per_frame(model_)) / sample_rate(model_);
}

Speech2Text::~Speech2Text() = default;

bool Speech2Text::too_short(std::size_t num_samples) const {
  const auto n = static_cast<std::int64_t>(num_samples);
  if (is_owsm() || model_->frontend.is_empty()) return n == 0;
  if (n <= model_->settings().frontend.n_fft / 2) return true;
  return model_->frontend->num_frames(n) < model_->encoder->min_input_length();
}

std::vector<Recognised> Speech2Text::decode(const std::vector<std::vector<float>>& waveforms) {
  std::vector<Recognised> results(waveforms.size());
  std::vector<std::int64_t> lengths;
  std::vector<std::size_t> items;
  for (std::size_t i = 0; i < waveforms.size(); ++i) {
    if (too_short(waveforms[i].size())) {
      log::warning("utterance {} has {} samples, too short for the model: its text is empty", i,
                   waveforms[i].size());
      results[i].nbest.push_back({});
      continue;
    }
    items.push_back(i);
    lengths.push_back(static_cast<std::int64_t>(waveforms[i].size()));
  }
  const BatchBudget budget{options_.batch_size,
                           static_cast<std::int64_t>(options_.batch_seconds * sample_rate(model_))};
  for_each_batch(lengths, budget, [&](const std::vector<std::size_t>& positions) {
    std::vector<std::size_t> batch;
    for (std::size_t position : positions) batch.push_back(items[position]);
    try {
      decode_batch(waveforms, batch, results);
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) throw;
#ifdef TUTTI_WITH_CUDA
      if (device_.is_cuda()) c10::cuda::CUDACachingAllocator::emptyCache();
#endif
      throw OutOfMemory(error.what());
    }
  });
  return results;
}

void Speech2Text::decode_batch(const std::vector<std::vector<float>>& waveforms,
                               const std::vector<std::size_t>& items,
                               std::vector<Recognised>& results) {
  const torch::NoGradGuard no_grad;
  const auto window = static_cast<std::int64_t>(OwsmTokens::kWindow * sample_rate(model_));
  Lengths lengths;
  std::int64_t longest = 0;
  for (std::size_t item : items) {
    lengths.push_back(is_owsm() ? window : static_cast<std::int64_t>(waveforms[item].size()));
    longest = std::max(longest, lengths.back());
  }
  torch::Tensor host = torch::zeros({static_cast<std::int64_t>(items.size()), longest});
  for (std::size_t row = 0; row < items.size(); ++row) {
    const std::vector<float>& samples = waveforms[items[row]];
    std::copy_n(samples.data(),
                std::min<std::size_t>(samples.size(), static_cast<std::size_t>(longest)),
                host.data_ptr<float>() + static_cast<std::int64_t>(row) * longest);
  }
  const Encoded encoded = model_->encode(host.to(device_), lengths);
  auto found = search(encoded);
  if (options_.token_times) add_times(encoded, found);
  for (std::size_t row = 0; row < items.size(); ++row)
    results[items[row]].nbest = std::move(found[row]);
}

Recognition Speech2Text::finish(const std::vector<std::int64_t>& ids) const {
  Recognition out;
  for (std::int64_t id : ids)
    if (id != model_->settings().blank_id) out.token_ids.push_back(static_cast<int>(id));
  out.tokens = codec_.tokens().pieces(out.token_ids);
  std::vector<std::string> spoken;
  for (const std::string& token : out.tokens)
    if (owsm_ == nullptr || !owsm_->is_time(codec_.tokens().find(token))) spoken.push_back(token);
  out.text = codec_.tokenizer().text(spoken);
  return out;
}

std::vector<std::vector<Recognition>> Speech2Text::search(const Encoded& encoded) {
  std::vector<std::vector<Recognition>> out(encoded.lengths.size());
  if (beam_search_ != nullptr) {
    const auto results = beam_search_->decode(encoded.out, encoded.lengths);
    for (std::size_t u = 0; u < results.size(); ++u) {
      for (const Hypothesis& h : results[u].nbest) {
        Recognition recognition = finish(h.tokens);
        recognition.score = h.score;
        recognition.decoder_score = h.decoder_score;
        recognition.ctc_score = h.ctc_score;
        out[u].push_back(std::move(recognition));
      }
    }
  } else if (is_transducer()) {
    const TransducerModel transducer = transducer_model(model_);
    std::vector<std::vector<TransducerHypothesis>> results;
    if (options_.beam_size == 1) {
      for (auto& h : transducer_greedy(transducer, encoded.out, encoded.lengths))
        results.push_back({std::move(h)});
    } else {
      for (std::size_t u = 0; u < encoded.lengths.size(); ++u)
        results.push_back(transducer_beam_search(
            transducer, encoded.out[static_cast<std::int64_t>(u)].narrow(0, 0, encoded.lengths[u]),
            {.beam_size = options_.beam_size, .nbest = options_.nbest}));
    }
    for (std::size_t u = 0; u < results.size(); ++u) {
      for (const TransducerHypothesis& h : results[u]) {
        Recognition recognition = finish(h.tokens);
        recognition.score = h.score;
        for (std::int64_t frame : h.frames)
          recognition.times.push_back({static_cast<double>(frame) * seconds_per_frame_,
                                       static_cast<double>(frame + 1) * seconds_per_frame_});
        out[u].push_back(std::move(recognition));
      }
    }
  } else {
    const torch::Tensor log_probs =
        model_->ctc->log_probs(encoded.out).to(torch::kCPU).contiguous();
    for (std::size_t u = 0; u < out.size(); ++u) {
      const LogProbs x = rows_of(log_probs[static_cast<std::int64_t>(u)], encoded.lengths[u]);
      const int blank = static_cast<int>(model_->settings().blank_id);
      const auto found =
          options_.beam_size == 1
              ? std::vector<CtcHypothesis>{ctc_greedy(x, blank)}
              : ctc_prefix_beam_search(x, {.beam_size = static_cast<int>(options_.beam_size),
                                           .nbest = static_cast<int>(options_.nbest),
                                           .blank = blank});
      for (const CtcHypothesis& h : found) {
        Recognition recognition = finish({h.tokens.begin(), h.tokens.end()});
        recognition.score = recognition.ctc_score = h.score;
        out[u].push_back(std::move(recognition));
      }
    }
  }
  // ESPnet's answer to "nothing found" is an exception; an empty text can be scored and does not
  // stop a run.
  for (auto& nbest : out)
    if (nbest.empty()) nbest.push_back({});
  return out;
}

void Speech2Text::add_times(const Encoded& encoded, std::vector<std::vector<Recognition>>& found) {
  if (model_->ctc.is_empty() || is_transducer()) return;
  const torch::Tensor log_probs = model_->ctc->log_probs(encoded.out).to(torch::kCPU).contiguous();
  for (std::size_t u = 0; u < found.size(); ++u) {
    const LogProbs x = rows_of(log_probs[static_cast<std::int64_t>(u)], encoded.lengths[u]);
    for (Recognition& recognition : found[u]) {
      recognition.times.clear();
      for (const TokenTime& time :
           ctc_align(x, recognition.token_ids, static_cast<int>(model_->settings().blank_id)))
        recognition.times.push_back({static_cast<double>(time.begin_frame) * seconds_per_frame_,
                                     static_cast<double>(time.end_frame) * seconds_per_frame_});
    }
  }
}

std::vector<LongSegment> Speech2Text::decode_long_owsm(const std::vector<float>& waveform) {
  if (!options_.predict_time)
    throw ConfigError(
        "predict_time: got false, but windows of an OWSM model follow its time tokens",
        "set predict_time: true");
  const double rate = sample_rate(model_);
  const auto size = static_cast<std::int64_t>(waveform.size());
  std::vector<LongSegment> out;
  for (std::int64_t offset = 0; offset < size;) {
    const std::int64_t end = std::min<std::int64_t>(
        size, offset + static_cast<std::int64_t>(OwsmTokens::kWindow * rate));
    if (static_cast<double>(end - offset) < 0.2 * rate) break;  // a click, not a sentence
    const Recognition best =
        decode({{waveform.begin() + offset, waveform.begin() + end}})[0].nbest[0];
    const OwsmSegments segments = owsm_->segments({best.token_ids.begin(), best.token_ids.end()});
    const double start = static_cast<double>(offset) / rate;
    for (const TimedTokens& utterance : segments.utterances)
      out.push_back(
          {start + utterance.begin, start + utterance.end, finish(utterance.tokens).text});
    offset += static_cast<std::int64_t>(std::llround(segments.next * rate));
  }
  return out;
}

std::vector<LongSegment> Speech2Text::decode_long(const std::vector<float>& waveform, double window,
                                                  double context) {
  if (is_owsm()) return decode_long_owsm(waveform);
  if (!(window > 2 * context) || context < 0)
    throw ConfigError(fmt::format(
        "window: got {} s with {} s of context on each side, expected more than twice the context",
        window, context));
  const double rate = sample_rate(model_);
  const auto size = static_cast<std::int64_t>(waveform.size());
  const auto core = static_cast<std::int64_t>((window - 2 * context) * rate);
  const auto margin = static_cast<std::int64_t>(context * rate);
  struct Window {
    std::int64_t begin, core_begin, core_end;
  };
  std::vector<Window> windows;
  std::vector<std::vector<float>> pieces;
  for (std::int64_t begin = 0; begin < size; begin += core) {
    const std::int64_t end = std::min(size, begin + core);
    const std::int64_t from = std::max<std::int64_t>(0, begin - margin),
                       to = std::min(size, end + margin);
    windows.push_back({from, begin, end});
    pieces.emplace_back(waveform.begin() + from, waveform.begin() + to);
  }
  const bool times = options_.token_times;
  options_.token_times = true;
  const std::vector<Recognised> found = decode(pieces);
  options_.token_times = times;
  std::vector<LongSegment> out;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const Recognition& best = found[i].nbest[0];
    const double begin = static_cast<double>(windows[i].core_begin) / rate,
                 end = static_cast<double>(windows[i].core_end) / rate;
    std::vector<std::int64_t> mine;
    for (std::size_t k = 0; k < best.token_ids.size(); ++k) {
      // Without times (too few frames for the alignment) nothing can be told apart: keep all.
      const bool timed = best.times.size() == best.token_ids.size();
      const double middle = timed ? static_cast<double>(windows[i].begin) / rate +
                                        (best.times[k].begin + best.times[k].end) / 2
                                  : begin;
      if (middle >= begin && middle < end) mine.push_back(best.token_ids[k]);
    }
    if (!mine.empty()) out.push_back({begin, end, finish(mine).text});
  }
  return out;
}

}  // namespace tutti::speech
