#include "tutti/speech/decoding/speech2text.h"

#include <fmt/format.h>
#include <torch/torch.h>
#ifdef TUTTI_WITH_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#endif

#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/rounding.h"
#include "tutti/data/dataset.h"
#include "tutti/data/io/audio.h"
#include "tutti/speech/decoding/asr_search.h"
#include "tutti/speech/decoding/batching.h"
#include "tutti/speech/decoding/ctc_search.h"
#include "tutti/speech/decoding/device_name.h"
#include "tutti/speech/decoding/owsm_search.h"
#include "tutti/speech/models/attention.h"
#include "tutti/trainer/out_of_memory.h"

namespace tutti::speech {
namespace {

// Samples between two encoder frames.
std::int64_t samples_per_frame(const AsrModel& model) {
  // Far from the edges, 4800 feature frames (a multiple of every subsampling factor) give 4800 /
  // factor.
  const std::int64_t out =
      model->encoder->output_length(14400) - model->encoder->output_length(9600);
  const std::int64_t factor = out > 0 ? 4800 / out : 1;
  return factor * (model->frontend.is_empty() ? model->settings().input_size
                                              : model->settings().frontend.hop_length);
}

LogProbs rows_of(const torch::Tensor& log_probs_TV, std::int64_t frames) {
  return {log_probs_TV.data_ptr<float>(), static_cast<std::size_t>(frames),
          static_cast<std::size_t>(log_probs_TV.size(1))};
}

}  // namespace

torch::ScalarType parse_dtype(const std::string& name) {
  if (name == "float32") return torch::kFloat32;
  if (name == "bfloat16") return torch::kBFloat16;
  if (name == "float16") return torch::kFloat16;
  if (name == "float64") return torch::kFloat64;
  throw ConfigError(
      fmt::format("dtype: got '{}', expected float32, bfloat16, float16 or float64", name));
}

// auto: a worker sees the GPUs it was given and no others (CUDA_VISIBLE_DEVICES).
torch::Device parse_device(const std::string& name) {
  if (const auto mistake = device_mistake(name)) throw ConfigError("device: " + *mistake);
  if (name == "auto") return {torch::cuda::is_available() ? "cuda" : "cpu"};
  const torch::Device device(name);
  if (device.is_cuda() && !torch::cuda::is_available())
    throw ConfigError(fmt::format("device: got {}, but libtorch sees no GPU here", name),
                      "set device: cpu");
  return device;
}

bool too_short(const AsrModel& model, std::size_t num_samples) {
  const auto n = static_cast<std::int64_t>(num_samples);
  if (model->frontend.is_empty())
    return n / model->settings().input_size <
           std::max<std::int64_t>(1, model->encoder->min_input_length());
  if (n <= model->settings().frontend.n_fft / 2) return true;
  return model->frontend->num_frames(n) < model->encoder->min_input_length();
}

Speech2Text::Speech2Text(AsrModel model, TextCodec codec, Speech2TextOptions options,
                         LanguageModel lm)
    : model_(std::move(model)),
      codec_(std::move(codec)),
      options_(std::move(options)),
      device_(parse_device(options_.device)),
      encoder_stream_(device_) {
  if (codec_.tokens().size() != model_->settings().vocab_size)
    throw ConfigError(fmt::format("token list: got {} tokens, the model has {} outputs",
                                  codec_.tokens().size(), model_->settings().vocab_size),
                      "use the token list the model was trained with");
  if (options_.batch_size < 1) throw ConfigError("batch_size: got 0, expected at least 1");
  if (options_.beam_size > model_->settings().vocab_size) {
    log::warning("beam_size: {} is more than the {} tokens of the model; {} is used",
                 options_.beam_size, model_->settings().vocab_size, model_->settings().vocab_size);
    options_.beam_size = model_->settings().vocab_size;
  }
  const torch::ScalarType dtype = parse_dtype(options_.dtype);
  attend_without_plans();
  model_->eval();
  model_->to(device_);
  // The frontend and the statistics stay in float32: the encoder takes its features in its own
  // type.
  model_->encoder->to(dtype);
  if (is_owsm_ctc()) model_->prompt_to(dtype);
  if (!model_->ctc.is_empty()) model_->ctc->to(dtype);
  if (!model_->decoder.is_empty()) model_->decoder->to(dtype);
  if (!model_->predictor.is_empty()) model_->predictor->to(dtype);
  if (!model_->joint_network.is_empty()) model_->joint_network->to(dtype);
  model_->encoder->set_replaying(true);

  const double lm_weight = options_.lm_weight.value_or(has_window() ? 0.0 : 1.0);
  if (lm_weight == 0) lm = nullptr;
  if (lm) {
    if (is_transducer() || options_.ctc_greedy)
      throw ConfigError(fmt::format("lm_file: got a language model, which {} does not ask",
                                    is_transducer() ? "the search of a transducer" : "ctc_greedy"),
                        "set lm_weight: 0");
    lm->eval();
    lm->to(device_, dtype);
  }
  if (options_.ctc_greedy && model_->ctc.is_empty())
    throw ConfigError("ctc_greedy: got true, but the model has no CTC", "leave it out");
  if (options_.ctc_greedy && options_.predict_time && is_owsm())
    throw ConfigError("ctc_greedy: got true with predict_time, but CTC knows no times",
                      "leave one of them out");
  BeamSearchOptions search{.beam_size = options_.beam_size,
                           .ctc_weight = options_.ctc_weight,
                           .lm_weight = lm_weight,
                           .penalty = options_.penalty,
                           .maxlenratio = options_.maxlenratio,
                           .minlenratio = options_.minlenratio,
                           .normalize_length = options_.normalize_length,
                           .nbest = options_.nbest};
  if (is_owsm_ctc()) check_owsm_ctc();
  if (is_owsm()) {
    owsm_ = std::make_unique<OwsmSearch>(model_, codec_, options_, device_, lm);
    owsm_call_ = {options_.predict_time, options_.text_prev};
  } else if (!is_transducer() && !options_.ctc_greedy) {
    if (model_->decoder.is_empty() && model_->ctc.is_empty())
      throw ConfigError("the model has neither a decoder nor CTC: there is nothing to decode with");
    // Without a decoder the rest of the weight is nobody's; the language model has its own.
    if (model_->decoder.is_empty() && !lm) search.ctc_weight = 1.0;
    beam_search_ = std::make_unique<BeamSearch>(search_model(model_, lm), std::move(search));
  }
  seconds_per_frame_ = static_cast<double>(samples_per_frame(model_)) / sample_rate();
  // The encoder works on a stream of its own from now on, which must find its weights there.
  if (device_.is_cuda()) torch::cuda::synchronize(device_.index());
  budget_ = {options_.batch_size,
             static_cast<std::int64_t>(options_.batch_seconds * sample_rate())};
}

Speech2Text::~Speech2Text() = default;

double Speech2Text::frame_time(std::size_t frame) const {
  return seconds_per_frame_ * static_cast<double>(std::max<std::int64_t>(
                                  0, static_cast<std::int64_t>(frame) - prefix_frames()));
}

int Speech2Text::sample_rate() const {
  if (!model_->frontend.is_empty()) return model_->settings().frontend.fs;
  return static_cast<int>(data::kFeatureFrameRate * model_->settings().input_size);
}

std::string Speech2Text::problem_of(Waveform waveform) const {
  std::string problem = data::audio_problem(waveform);
  if (problem.empty() && too_short(waveform.size()))
    problem = fmt::format("too short for the model: {} samples", waveform.size());
  return problem;
}

std::vector<Recognised> Speech2Text::decode(const std::vector<std::vector<float>>& waveforms) {
  return decode_waveforms(std::vector<Waveform>(waveforms.begin(), waveforms.end()));
}

std::vector<std::string> Speech2Text::problems_of(const std::vector<Waveform>& waveforms) const {
  std::vector<std::string> problems(waveforms.size());
  // By several threads: a GPU waits for it.
  at::parallel_for(
      0, static_cast<std::int64_t>(waveforms.size()), 1, [&](std::int64_t begin, std::int64_t end) {
        for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
          problems[i] = problem_of(waveforms[i]);
      });
  return problems;
}

std::vector<Recognised> Speech2Text::decode_waveforms(const std::vector<Waveform>& waveforms,
                                                      std::shared_ptr<const Heard> heard) {
  std::vector<Recognised> results(waveforms.size());
  if (heard != nullptr) {
    std::vector<std::size_t> all(waveforms.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    try {
      decode_batch(waveforms, all, results, heard.get());
      return results;
    } catch (const std::exception& error) {
      if (!trainer::is_out_of_memory(error)) throw;
      give_memory_back();
      results.assign(waveforms.size(), {});
    }
    heard = nullptr;  // from the beginning, in smaller batches
  }
  std::vector<Waveform> whole, timed, shared;
  std::vector<std::size_t> items, timed_items, shared_items;
  const std::vector<std::string> problems = problems_of(waveforms);
  for (std::size_t i = 0; i < waveforms.size(); ++i) results[i].problem = problems[i];
  for (std::size_t i = 0; i < waveforms.size(); ++i) {
    if (!results[i].problem.empty()) {
      results[i].nbest.emplace_back();
    } else if (is_long(waveforms[i]) && is_owsm() && options_.predict_time) {
      timed_items.push_back(i);
      timed.push_back(waveforms[i]);
    } else if (is_long(waveforms[i]) && is_owsm_ctc()) {
      shared_items.push_back(i);
      shared.push_back(waveforms[i]);
    } else if (is_long(waveforms[i])) {
      results[i] = decode_cut(waveforms[i], pieces_of(waveforms[i]));
    } else {
      items.push_back(i);
      whole.push_back(waveforms[i]);
    }
  }
  if (!timed.empty()) {
    auto segments = decode_by_times(timed);
    for (std::size_t k = 0; k < timed.size(); ++k)
      results[timed_items[k]] = join_segments(std::move(segments[k]));
  }
  if (!shared.empty()) {
    auto found = decode_with_context(shared);
    for (std::size_t k = 0; k < shared.size(); ++k) results[shared_items[k]] = std::move(found[k]);
  }
  std::vector<Recognised> found = decode_whole(whole);
  for (std::size_t k = 0; k < items.size(); ++k) results[items[k]] = std::move(found[k]);
  return results;
}

std::vector<Recognised> Speech2Text::decode_whole(const std::vector<Waveform>& waveforms) {
  std::vector<Recognised> results(waveforms.size());
  std::vector<std::int64_t> lengths;
  std::vector<std::size_t> items;
  for (std::size_t i = 0; i < waveforms.size(); ++i) {
    if (too_short(waveforms[i].size())) {  // the last piece of a recording
      results[i].nbest.emplace_back();
      continue;
    }
    items.push_back(i);
    lengths.push_back(has_window() ? static_cast<std::int64_t>(owsm_window() * sample_rate())
                                   : static_cast<std::int64_t>(waveforms[i].size()));
  }
  in_batches(lengths, [&](const std::vector<std::size_t>& positions) {
    std::vector<std::size_t> batch;
    for (std::size_t position : positions) batch.push_back(items[position]);
    decode_batch(waveforms, batch, results);
  });
  return results;
}

void Speech2Text::give_memory_back() {
  may_begin_ = false;
  {
    const SideStream::Scope beside(encoder_stream_);  // the other thread may be hearing
    model_->encoder->give_up_replays();
  }
  if (!model_->decoder.is_empty()) model_->decoder->forget_kept();
#ifdef TUTTI_WITH_CUDA
  if (device_.is_cuda()) c10::cuda::CUDACachingAllocator::emptyCache();
#endif
}

void Speech2Text::in_batches(const std::vector<std::int64_t>& lengths,
                             const std::function<void(const std::vector<std::size_t>&)>& run) {
  for_each_batch(lengths, budget_, [&](const std::vector<std::size_t>& positions) {
    try {
      run(positions);
    } catch (const std::exception& error) {
      if (!trainer::is_out_of_memory(error)) throw;
      give_memory_back();
      throw OutOfMemory(error.what());
    }
  });
}

void Speech2Text::decode_batch(const std::vector<Waveform>& waveforms,
                               const std::vector<std::size_t>& items,
                               std::vector<Recognised>& results, const Heard* begun) {
  const torch::NoGradGuard no_grad;
  const Heard heard = begun != nullptr ? *begun : hear(waveforms, items);
  heard.done.wait();
  const Encoded& encoded = heard.encoded;
  encoder_stream_.give_to_current(encoded.out);
  std::vector<std::size_t> good;
  const bool* is_finite = heard.is_finite_U.data_ptr<bool>();
  for (std::size_t row = 0; row < items.size(); ++row) {
    if (is_finite[row]) {
      good.push_back(items[row]);
      continue;
    }
    results[items[row]].problem = "what the encoder makes of it is not finite";
    results[items[row]].nbest.assign(1, {});
  }
  if (good.size() < items.size()) {  // the others once more, without it
    if (!good.empty()) decode_batch(waveforms, good, results);
    return;
  }
  const bool has_prompt = is_owsm() && !options_.ctc_greedy;
  auto found = has_prompt ? owsm_->run(encoded, owsm_call_) : search(encoded);
  const bool has_time_tokens = has_prompt && owsm_call_.timestamps;
  if (options_.token_times && !has_time_tokens) add_times(encoded, found);
  for (std::size_t row = 0; row < items.size(); ++row) {
    Recognised& result = results[items[row]];
    result.nbest = std::move(found[row]);
    const double length = static_cast<double>(waveforms[items[row]].size()) / sample_rate();
    // What is heard in the silence that fills the window belongs to the end.
    for (Recognition& recognition : result.nbest)
      for (TokenSpan& time : recognition.times)
        time = {std::min(time.begin, length), std::min(time.end, length)};
    if (has_time_tokens) result.segments = owsm_->segments(result.nbest[0]);
  }
}

Recognition Speech2Text::finish(const std::vector<std::int64_t>& ids) const {
  Recognition out;
  for (std::int64_t id : ids)
    if (id != model_->settings().blank_id) out.token_ids.push_back(static_cast<int>(id));
  out.tokens = codec_.tokens().pieces(out.token_ids);
  out.text = has_window() ? spoken_text(codec_, out.tokens) : codec_.tokenizer().text(out.tokens);
  if (is_owsm_ctc()) {
    out.full_text = codec_.decode(out.token_ids);
    out.language = options_.lang_sym;
  }
  return out;
}

void Speech2Text::greedy(const Encoded& encoded, std::vector<std::vector<Recognition>>& out) {
  const auto [log_probs, tokens] = model_->ctc->log_probs(encoded.out).max(-1);  // (U, T)
  const torch::Tensor log_prob = log_probs.to(torch::kCPU).contiguous(),
                      token = tokens.to(torch::kCPU).contiguous();
  for (std::size_t u = 0; u < out.size(); ++u) {
    const auto row = static_cast<std::int64_t>(u), frames = encoded.lengths[u];
    const auto begin = row * token.size(1);
    const CtcHypothesis h =
        ctc_greedy({token.data_ptr<std::int64_t>() + begin, static_cast<std::size_t>(frames)},
                   {log_prob.data_ptr<float>() + begin, static_cast<std::size_t>(frames)},
                   static_cast<int>(model_->settings().blank_id));
    Recognition recognition = finish({h.tokens.begin(), h.tokens.end()});
    recognition.score = recognition.ctc_score = h.score;
    out[u].push_back(std::move(recognition));
  }
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
    const TransducerConf& conf = options_.transducer_conf;
    if (conf.search_type == "greedy" ||
        (conf.search_type == "default" && options_.beam_size == 1)) {
      for (auto& h : transducer_greedy(transducer, encoded.out, encoded.lengths))
        results.push_back({std::move(h)});
    } else {
      for (std::size_t u = 0; u < encoded.lengths.size(); ++u)
        results.push_back(transducer_beam_search(
            transducer, encoded.out[static_cast<std::int64_t>(u)].narrow(0, 0, encoded.lengths[u]),
            {.beam_size = options_.beam_size,
             .nbest = options_.nbest,
             .score_norm = conf.score_norm.value_or(true)}));
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
    greedy(encoded, out);
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
           ctc_align(x, recognition.token_ids, static_cast<int>(model_->settings().blank_id))) {
        recognition.times.push_back({frame_time(time.begin_frame), frame_time(time.end_frame)});
        recognition.token_confidences.push_back(std::exp(static_cast<double>(time.log_prob)));
      }
    }
  }
}

std::vector<std::vector<LanguageGuess>> Speech2Text::languages(
    const std::vector<Waveform>& waveforms, std::size_t nbest) {
  if (!is_owsm())
    throw ConfigError("the model knows no languages", "give a speech-to-text model (OWSM)");
  const torch::NoGradGuard no_grad;
  std::vector<std::vector<LanguageGuess>> out(waveforms.size());
  const auto window = static_cast<std::int64_t>(owsm_window() * sample_rate());
  in_batches(std::vector<std::int64_t>(waveforms.size(), window),
             [&](const std::vector<std::size_t>& batch) {
               const auto found = owsm_->languages(encode(waveforms, batch), nbest);
               for (std::size_t row = 0; row < batch.size(); ++row) out[batch[row]] = found[row];
             });
  return out;
}

std::vector<std::vector<LongSegment>> Speech2Text::decode_by_times(
    const std::vector<Waveform>& waveforms) {
  if (options_.ctc_weight > 0)
    throw ConfigError(fmt::format("ctc_weight: got {}, but windows of an OWSM model follow time "
                                  "tokens, which CTC does not know",
                                  options_.ctc_weight),
                      "set ctc_weight: 0.0");
  const double rate = sample_rate();
  const auto window = static_cast<std::size_t>(owsm_window() * rate);
  struct Progress {
    std::size_t offset = 0;
    std::optional<std::string> previous;
  };
  std::vector<Progress> progress(waveforms.size(), {0, options_.text_prev});
  std::vector<std::vector<LongSegment>> out(waveforms.size());
  const auto decode_windows = [&](const std::vector<std::size_t>& items) {
    std::vector<Waveform> windows;
    for (const std::size_t i : items)
      windows.push_back(waveforms[i].subspan(
          progress[i].offset, std::min(window, waveforms[i].size() - progress[i].offset)));
    const std::vector<Recognised> found = decode_whole(windows);
    for (std::size_t k = 0; k < items.size(); ++k) {
      const Recognition& best = found[k].nbest[0];
      Progress& now = progress[items[k]];
      const OwsmSegments segments =
          owsm_->tokens().segments({best.token_ids.begin(), best.token_ids.end()});
      const double start = static_cast<double>(now.offset) / rate;
      now.previous.emplace();
      for (const TimedTokens& said : segments.utterances) {
        now.previous->append(codec_.decode({said.tokens.begin(), said.tokens.end()}));
        out[items[k]].push_back({round_time(start + said.begin), round_time(start + said.end),
                                 finish(said.tokens).text});
      }
      now.offset += static_cast<std::size_t>(std::llround(segments.next * rate));
    }
  };
  const OwsmCall asked = owsm_call_;
  for (;;) {
    std::vector<std::size_t> items;  // a rest under 0.2 s is a click, not a sentence
    for (std::size_t i = 0; i < waveforms.size(); ++i)
      if (static_cast<double>(progress[i].offset) + 0.2 * rate <=
          static_cast<double>(waveforms[i].size()))
        items.push_back(i);
    if (items.empty()) break;
    if (!options_.condition_on_prev_text) {
      owsm_call_ = {true, std::nullopt};
      decode_windows(items);
      continue;
    }
    for (const std::size_t item : items) {  // each has a prompt of its own
      owsm_call_ = {true, progress[item].previous};
      decode_windows({item});
    }
  }
  owsm_call_ = asked;
  return out;
}

Recognised Speech2Text::join_segments(std::vector<LongSegment> segments) const {
  Recognised out;
  out.segments = std::move(segments);
  out.nbest.emplace_back();
  for (const LongSegment& segment : out.segments)
    out.nbest[0].text += (out.nbest[0].text.empty() ? "" : " ") + segment.text;
  return out;
}

bool Speech2Text::is_long(Waveform waveform) const {
  // Twice, so that an utterance a little over the window is not torn: models bear that much.
  const double limit = has_window() ? owsm_window() : 2 * options_.window;
  return options_.cut != "never" && !model_->frontend.is_empty() &&
         static_cast<double>(waveform.size()) > limit * sample_rate();
}

std::vector<Piece> Speech2Text::pieces_of(Waveform waveform) const {
  const double window = is_owsm() ? std::min(options_.window, owsm_window()) : options_.window;
  if (options_.cut == "energy") return cut_in_pauses(waveform, sample_rate(), window);
  const bool can_time = !model_->ctc.is_empty() || is_transducer();
  return cut_evenly(waveform.size(), sample_rate(), window,
                    can_time ? std::min(2.0, window / 4) : 0);
}

Recognised Speech2Text::decode_cut(Waveform waveform, const std::vector<Piece>& pieces) {
  Recognised out;
  std::vector<Waveform> parts;
  bool has_context = false;
  for (const Piece& piece : pieces) {
    parts.push_back(waveform.subspan(piece.begin, piece.end - piece.begin));
    has_context = has_context || piece.begin != piece.keep_begin || piece.end != piece.keep_end;
  }
  const bool asked = options_.token_times;
  options_.token_times = asked || has_context;  // they tell whose a token in the context is
  const std::vector<Recognised> found = decode_whole(parts);
  options_.token_times = asked;
  out = join(pieces, found);
  if (!asked) out.nbest[0].times.clear();
  return out;
}

Recognised Speech2Text::join(const std::vector<Piece>& pieces,
                             std::span<const Recognised> found) const {
  const double rate = sample_rate();
  Recognised out;
  std::vector<std::int64_t> all;
  Recognition whole;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Recognition& best = found[i].nbest[0];
    const auto seconds = [rate](std::size_t samples) {
      return static_cast<double>(samples) / rate;
    };
    const double start = seconds(pieces[i].begin);
    const double begin = seconds(pieces[i].keep_begin), end = seconds(pieces[i].keep_end);
    // Without times (too few frames for the alignment) nothing can be told apart: keep all.
    const bool timed = best.times.size() == best.token_ids.size();
    const bool is_whole =
        pieces[i].begin == pieces[i].keep_begin && pieces[i].end == pieces[i].keep_end;
    std::vector<std::int64_t> mine;
    for (std::size_t k = 0; k < best.token_ids.size(); ++k) {
      const TokenSpan at = timed ? TokenSpan{start + best.times[k].begin, start + best.times[k].end}
                                 : TokenSpan{begin, end};
      const double middle = timed ? (at.begin + at.end) / 2 : begin;
      if (!is_whole && !(middle >= begin && middle < end)) continue;
      mine.push_back(best.token_ids[k]);
      whole.times.push_back(at);
      if (k < best.token_confidences.size())
        whole.token_confidences.push_back(best.token_confidences[k]);
    }
    if (best.score) whole.score = whole.score.value_or(0) + *best.score;
    whole.decoder_score += best.decoder_score;
    whole.ctc_score += best.ctc_score;
    all.insert(all.end(), mine.begin(), mine.end());
    if (!mine.empty()) out.segments.push_back({begin, end, finish(mine).text});
    if (out.problem.empty()) out.problem = found[i].problem;
  }
  // Each piece begins a word of its own: the texts are joined, not the tokens.
  const Recognition spelled = finish(all);
  whole.token_ids = spelled.token_ids;
  whole.tokens = spelled.tokens;
  for (const LongSegment& segment : out.segments)
    whole.text += (whole.text.empty() ? "" : " ") + segment.text;
  if (whole.token_confidences.size() != whole.token_ids.size()) whole.token_confidences.clear();
  out.nbest.push_back(std::move(whole));
  return out;
}

std::vector<LongSegment> Speech2Text::decode_long(const std::vector<float>& waveform, double window,
                                                  double context) {
  if (is_owsm()) return decode_by_times({Waveform(waveform)})[0];
  if (is_owsm_ctc()) return decode_with_context({Waveform(waveform)})[0].segments;
  return decode_cut(waveform, cut_evenly(waveform.size(), sample_rate(), window, context)).segments;
}

std::optional<double> Recognition::confidence() const {
  if (!score) return std::nullopt;
  return std::exp(std::min(0.0, *score / static_cast<double>(token_ids.size() + 1)));
}

}  // namespace tutti::speech
