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
// on the batches. An utterance too short for the model gives one empty hypothesis and a warning.
// Not thread-safe: one object per thread and device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/speech/decoding/beam_search.h"
#include "tutti/speech/decoding/owsm.h"
#include "tutti/speech/models/asr_model.h"
#include "tutti/speech/text/token_list.h"

namespace tutti::speech {

struct Speech2TextOptions {
  std::string device = "cpu";     // cpu, cuda, cuda:1, ...
  std::string dtype = "float32";  // float32, bfloat16, float16, float64; features stay float32
  std::size_t batch_size = 1;
  double batch_seconds = 0;  // padded audio per batch; 0: no limit
  std::int64_t beam_size = 20;
  double ctc_weight = 0.5;  // of models with an attention decoder
  double penalty = 0.0;
  double maxlenratio = 0.0;
  double minlenratio = 0.0;
  bool normalize_length = false;
  std::int64_t nbest = 1;
  bool token_times =
      false;  // by CTC alignment; ignored when the model has no CTC and is no transducer
  // OWSM: every utterance is padded or cut to 30 s and decoded after this prompt.
  std::string lang_sym;  // e.g. <eng>; empty: not an OWSM model
  std::string task_sym = "<asr>";
  bool predict_time = false;
};

struct TokenSpan {
  double begin = 0;  // seconds
  double end = 0;
};

struct Recognition {
  std::string text;
  std::vector<std::string> tokens;
  std::vector<int> token_ids;
  double score = 0;
  double decoder_score = 0;
  double ctc_score = 0;
  std::vector<TokenSpan> times;  // one per token, when asked for
};

struct Recognised {
  std::vector<Recognition> nbest;
};

struct LongSegment {
  double begin = 0;
  double end = 0;
  std::string text;
};

class Speech2Text {
 public:
  // Takes the model over: moves it to the device and dtype, and to eval mode. Throws ConfigError
  // for options that make no sense or that the model cannot serve.
  Speech2Text(AsrModel model, TextCodec codec, Speech2TextOptions options);
  ~Speech2Text();

  // Samples in [-1, 1] at the model's rate.
  std::vector<Recognised> decode(const std::vector<std::vector<float>>& waveforms);
  // A recording of any length, by windows. OWSM models say where their utterances end and the next
  // window begins there; for others windows overlap by `context` seconds on each side, and CTC
  // times decide which window a token belongs to.
  std::vector<LongSegment> decode_long(const std::vector<float>& waveform, double window = 30.0,
                                       double context = 2.0);

  const Speech2TextOptions& options() const noexcept { return options_; }
  const TextCodec& codec() const noexcept { return codec_; }
  double seconds_per_frame() const noexcept { return seconds_per_frame_; }

 private:
  void decode_batch(const std::vector<std::vector<float>>& waveforms,
                    const std::vector<std::size_t>& items, std::vector<Recognised>& results);
  std::vector<std::vector<Recognition>> search(const Encoded& encoded);
  Recognition finish(const std::vector<std::int64_t>& ids) const;
  void add_times(const Encoded& encoded, std::vector<std::vector<Recognition>>& found);
  bool too_short(std::size_t num_samples) const;
  bool is_transducer() const { return !model_->predictor.is_empty(); }
  bool is_owsm() const { return !options_.lang_sym.empty(); }
  std::vector<LongSegment> decode_long_owsm(const std::vector<float>& waveform);

  AsrModel model_;
  TextCodec codec_;
  Speech2TextOptions options_;
  torch::Device device_;
  std::unique_ptr<BeamSearch> beam_search_;  // null: transducer, or CTC alone
  std::unique_ptr<OwsmTokens> owsm_;
  double seconds_per_frame_ = 0;
};

// Whether an exception says that a device or the host has no memory left.
bool is_out_of_memory(const std::exception& error) noexcept;

}  // namespace tutti::speech
