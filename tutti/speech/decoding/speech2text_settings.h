// The keys of a recogniser: `model:` of an inference config, `key=value` of `tutti infer --model`,
// `call_args` of a demo. One struct from the file to the search. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "tutti/config/schema.h"
#include "tutti/speech/decoding/owsm.h"

namespace tutti::speech {

// ESPnet's asr task calls it transducer_conf, its asr_transducer task beam_search_config.
struct TransducerConf {
  // default: best first, or greedy when beam_size is 1; beam: best first, whatever beam_size is, as
  // in the asr_transducer task; greedy: at most one token per frame, whatever beam_size is.
  std::string search_type = "default";
  std::optional<bool> score_norm;  // order by score per token; null: true, of the other task false
  config::Node of_searches;        // settings of searches that are not there
};

struct Speech2TextOptions {
  // ---- the trained model; empty where a model is given as an object or a pack
  std::string asr_train_config;
  std::string asr_model_file;
  std::string s2t_train_config;  // of an OWSM model, instead of the two above
  std::string s2t_model_file;
  std::string model_tag;        // a published folder or archive on disk, instead of all four
  std::string bpemodel;         // instead of the one its config names
  std::string lm_train_config;  // a language model; empty: config.yaml beside lm_file
  std::string lm_file;          // empty: none, or the one that a published folder brings
  // ---- where
  std::string device = "auto";  // auto (the GPU this process was given, else cpu), cpu, cuda:1, ...
  std::string dtype = "float32";  // float32, bfloat16, float16, float64; features stay float32
  std::size_t batch_size = 1;
  double batch_seconds = 0;  // padded audio per batch; 0: no limit
  // ---- search
  std::int64_t beam_size = 20;      // cut to the vocabulary, with a warning
  double ctc_weight = 0.5;          // of models with an attention decoder
  std::optional<double> lm_weight;  // null: 1, of OWSM models 0
  bool ctc_greedy = false;          // the best token of each frame, instead of a search
  double penalty = 0.0;
  double maxlenratio = 0.0;
  double minlenratio = 0.0;
  bool normalize_length = false;
  std::int64_t nbest = 1;
  TransducerConf transducer_conf;
  TransducerConf beam_search_config;  // instead, where it is set
  // By CTC alignment; ignored when the model has no CTC and is no transducer.
  bool token_times = false;
  // ---- long recordings
  std::string cut = "energy";  // where they are cut: energy (in pauses), plain (anywhere), never
  double window = 30.0;        // seconds a piece may have
  // ---- OWSM: every utterance is padded or cut to 30 s and decoded after this prompt.
  std::string lang_sym;  // e.g. <eng>; auto: what the model hears; empty: not an OWSM model
  std::string task_sym = "<asr>";
  bool predict_time = false;
  std::optional<std::string> text_prev;  // what was said before
  bool condition_on_prev_text = false;   // long recordings: each window knows the text before it
  std::string first_lang_sym, last_lang_sym;  // languages to choose from; empty: all
  // OWSM-CTC, long recordings: windows overlap by so many seconds on each side.
  double context_len_in_secs = 4.0;
  OwsmSymbols owsm;          // no keys: the model's own config has them
  config::Node espnet_only;  // keys of ESPnet's that are taken at one value only
};

// What decides which keys of a search mean something.
struct SearchFacts {
  bool is_owsm = false;  // with prompts, OWSM-CTC too
  bool is_owsm_ctc = false;
  bool is_transducer = false;
  bool is_seen = true;     // its own config was read, not only what names it
  bool is_greedy = false;  // the best token of CTC in each frame
  bool has_lm = false;
};
// Keys of `asked` that such a model has no use for: prompts of a model without them and ctc_greedy of a transducer are
// problems, what a search passes over is warned of. For the check of a file and for the run.
void check_effects(const config::Node& asked, const SearchFacts& model, config::Problems& problems);

// All keys of a recogniser.
config::Schema<Speech2TextOptions> speech2text_schema();

}  // namespace tutti::speech
