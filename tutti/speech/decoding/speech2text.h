// Speech to text with one call: batches, search and tokenizer behind the option names of ESPnet's
// Speech2Text.
//
//   Speech2Text recognise(model, TextCodec(tokens, make_tokenizer({.token_type = "bpe", .bpemodel =
//   "bpe.model"})),
//                         {.device = "cuda", .dtype = "bfloat16", .batch_size = 64, .beam_size = 5,
//                         .ctc_weight = 0.3});
//   std::vector<Recognised> results = recognise.decode({samples_a, samples_b});
//   results[0].nbest[0].text
//
// Utterances are decoded longest first, in batches of at most batch_size and batch_seconds; a batch
// that does not fit into memory is halved. Results are in the order of the input and do not depend
// on the batches. A recording longer than two windows is cut (windows.h) and its pieces are decoded
// as utterances are, so memory is bounded by the batch. Audio that cannot be decoded (too short, not
// a number, silent) gives one empty hypothesis and says why in `problem`; the others go on.
// Not thread-safe: one object per thread and device, but for begin().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/speech/decoding/batching.h"
#include "tutti/speech/decoding/beam_search.h"
#include "tutti/speech/decoding/owsm.h"
#include "tutti/speech/decoding/speech2text_settings.h"
#include "tutti/speech/decoding/windows.h"
#include "tutti/speech/models/asr_model.h"
#include "tutti/speech/models/language_model.h"
#include "tutti/speech/ops/gpu/side_stream.h"
#include "tutti/speech/text/token_list.h"

namespace tutti::speech {

struct TokenSpan {
  double begin = 0;  // seconds
  double end = 0;
};

struct Recognition {
  std::string text;
  std::vector<std::string> tokens;
  std::vector<int> token_ids;
  // Of the search; null: nobody scored this text, e.g. the one that long windows were put together to.
  std::optional<double> score;
  double decoder_score = 0;
  double ctc_score = 0;
  // When token_times were asked for, one per token: where it was, and the mean probability that CTC
  // gives it there (models with CTC only).
  std::vector<TokenSpan> times;
  std::vector<double> token_confidences;
  std::string full_text;  // OWSM: with language, task, times and other marks
  std::string language;   // OWSM: the language token of the prompt

  // Probability per token by the search's own score, 0 to 1: the geometric mean over the tokens and
  // the end. Null without a score.
  std::optional<double> confidence() const;
};

// A piece of a long recording.
struct LongSegment {
  double begin = 0;  // seconds
  double end = 0;
  std::string text;
};

struct Recognised {
  std::vector<Recognition> nbest;     // at least one; of a recording that was cut: exactly one
  std::string problem;                // why it could not be decoded; empty: it was
  std::vector<LongSegment> segments;  // of a recording that was cut
};

// Whether so few samples leave the encoder without a frame.
bool too_short(const AsrModel& model, std::size_t num_samples);

class OwsmSearch;

class Speech2Text {
 public:
  using Waveform = std::span<const float>;  // samples in [-1, 1] at the model's rate

  // Takes the model over: moves it to the device and dtype, and to eval mode. Throws ConfigError
  // for options that make no sense or that the model cannot serve.
  // `lm`, when given, takes part in the search with options.lm_weight.
  Speech2Text(AsrModel model, TextCodec codec, Speech2TextOptions options,
              LanguageModel lm = nullptr);
  ~Speech2Text();

  // What the encoder makes of a batch, and which of its rows can be searched: both when `done`.
  struct Heard {
    Encoded encoded;
    torch::Tensor is_finite_U;  // on the host
    SideStream::Mark done;
  };
  // Why this cannot be decoded; empty: it can. From any thread.
  std::string problem_of(Waveform waveform) const;
  // The first half of decode_waveforms() for waveforms that come later, from a second thread while the
  // first decodes: on a GPU the encoder then works beside the search. Null where the second half is
  // to do all of it: on a CPU, or when something must be cut or does not fit.
  // REQUIRES: no problem_of() them.
  std::shared_ptr<Heard> begin(const std::vector<Waveform>& waveforms);
  bool can_begin() const { return device_.is_cuda() && !is_owsm_ctc() && may_begin_; }

  // `heard`: what begin() gave for the same waveforms.
  std::vector<Recognised> decode_waveforms(const std::vector<Waveform>& waveforms,
                                           std::shared_ptr<const Heard> heard = nullptr);
  std::vector<Recognised> decode(const std::vector<std::vector<float>>& waveforms);
  // A recording of any length, by windows. OWSM models say where their utterances end and the next
  // window begins there; for others windows overlap by `context` seconds on each side, and CTC
  // times decide which window a token belongs to.
  std::vector<LongSegment> decode_long(const std::vector<float>& waveform, double window = 30.0,
                                       double context = 2.0);

  // OWSM: the `nbest` likeliest languages of each utterance's first window.
  std::vector<std::vector<LanguageGuess>> languages(const std::vector<Waveform>& waveforms,
                                                    std::size_t nbest = 1);

  const Speech2TextOptions& options() const noexcept { return options_; }
  const TextCodec& codec() const noexcept { return codec_; }
  double seconds_per_frame() const noexcept { return seconds_per_frame_; }

 private:
  // In batches of like length; nothing is cut.
  std::vector<Recognised> decode_whole(const std::vector<Waveform>& waveforms);
  void decode_batch(const std::vector<Waveform>& waveforms, const std::vector<std::size_t>& items,
                    std::vector<Recognised>& results, const Heard* begun = nullptr);
  torch::Tensor finite_rows(const Encoded& encoded) const;
  bool is_long(Waveform waveform) const;
  std::vector<Piece> pieces_of(Waveform waveform) const;
  Recognised join(const std::vector<Piece>& pieces, std::span<const Recognised> found) const;
  Recognised decode_cut(Waveform waveform, const std::vector<Piece>& pieces);
  std::vector<std::vector<Recognition>> search(const Encoded& encoded);
  void greedy(const Encoded& encoded, std::vector<std::vector<Recognition>>& out);
  Recognition finish(const std::vector<std::int64_t>& ids) const;
  void add_times(const Encoded& encoded, std::vector<std::vector<Recognition>>& found);
  bool too_short(std::size_t num_samples) const {
    return has_window() ? num_samples == 0 : speech::too_short(model_, num_samples);
  }
  // Values of a waveform per second: samples, or numbers of features made elsewhere.
  int sample_rate() const;
  std::vector<std::string> problems_of(const std::vector<Waveform>& waveforms) const;
  bool is_transducer() const { return !model_->predictor.is_empty(); }
  bool is_owsm_ctc() const { return !model_->prompt_encoder.is_empty(); }
  bool is_owsm() const { return !options_.lang_sym.empty() && !is_owsm_ctc(); }
  // Whether every utterance is brought to the model's window.
  bool has_window() const { return is_owsm() || is_owsm_ctc(); }
  // Frames before the first of the sound: language and task of OWSM-CTC.
  std::int64_t prefix_frames() const { return is_owsm_ctc() ? 2 : 0; }
  double frame_time(std::size_t frame) const;  // seconds
  double owsm_window() const { return options_.owsm.window; }
  // Long recordings of an OWSM model, a window of each at a time.
  std::vector<std::vector<LongSegment>> decode_by_times(const std::vector<Waveform>& waveforms);
  Recognised join_segments(std::vector<LongSegment> segments) const;
  // OWSM-CTC (owsm_ctc.cpp).
  void check_owsm_ctc() const;
  AsrPrompt owsm_ctc_prompt(const std::vector<bool>& knows_previous) const;
  std::vector<Recognised> decode_with_context(const std::vector<Waveform>& waveforms);
  void give_memory_back();  // after it was too little
  void in_batches(const std::vector<std::int64_t>& lengths,
                  const std::function<void(const std::vector<std::size_t>&)>& run);
  torch::Tensor padded(const std::vector<Waveform>& waveforms,
                       const std::vector<std::size_t>& items, std::int64_t longest) const;
  // On the encoder's stream (hearing.cpp); encode() for the current one.
  // `is_first`, by waveform: whether text_prev is what was said before it (OWSM-CTC); empty: of all.
  Heard hear(const std::vector<Waveform>& waveforms, const std::vector<std::size_t>& items,
             const std::vector<bool>& is_first = {});
  Encoded encode(const std::vector<Waveform>& waveforms, const std::vector<std::size_t>& items,
                 const std::vector<bool>& is_first = {});

  AsrModel model_;
  TextCodec codec_;
  Speech2TextOptions options_;
  torch::Device device_;
  SideStream encoder_stream_;
  std::atomic<bool> may_begin_ = true;       // memory was never too little
  std::unique_ptr<BeamSearch> beam_search_;  // null: transducer, or greedy
  std::unique_ptr<OwsmSearch> owsm_;         // null: not an OWSM model
  OwsmCall owsm_call_;                       // how the next window is decoded
  double seconds_per_frame_ = 0;
  BatchBudget budget_;  // what has turned out to fit
};

// "auto" (the GPU this process was given, else the CPU), cpu, cuda or cuda:N. Throws ConfigError.
torch::Device parse_device(const std::string& name);
// float32, bfloat16, float16 or float64. Throws ConfigError.
torch::ScalarType parse_dtype(const std::string& name);

}  // namespace tutti::speech
