#include "tutti/speech/decoding/speech2text_settings.h"

#include <fmt/format.h>

#include <cstdlib>

#include "tutti/speech/decoding/device_name.h"

namespace tutti::speech {

namespace {

config::Schema<TransducerConf> transducer_schema(const char* name) {
  using T = TransducerConf;
  config::Schema<T> s(name, "The search of a transducer.");
  s.field("search_type", &T::search_type,
          "default (greedy for beam_size 1), beam (best first for any) or greedy",
          {.one_of = {"default", "beam", "greedy"}});
  s.field("score_norm", &T::score_norm, "order alternatives by score per token");
  s.refused("score_norm_during", {"false"}, "leave it out: scores are divided at the end only");
  for (const char* key : {"max_sym_exp", "u_max", "nstep", "prefix_alpha", "expansion_gamma",
                          "expansion_beta", "multi_blank_durations", "multi_blank_indices"})
    s.field(key, &T::of_searches, "of other searches; without effect");
  return s;
}

// Keys of ESPnet's Speech2Text that mean something we do not do. A file that only repeats the
// defaults is taken.
void add_espnet_only(config::Schema<Speech2TextOptions>& s) {
  using S = Speech2TextOptions;
  s.refused("ngram_file", {},
            "n-gram models are not supported: leave it out, or give a neural one as lm_file");
  s.refused("token_type", {}, "leave it out: the model's own config says it");
  for (const char* key : {"lang_prompt_token", "nlp_prompt_token", "prompt_token_file"})
    s.refused(key, {}, "leave it out");
  for (const char* key :
       {"streaming", "time_sync", "multi_asr", "enh_s2t_task", "partial_ar", "sot_asr",
        "hugging_face_decoder", "quantize_asr_model", "quantize_s2t_model", "quantize_lm",
        "lid_prompt", "generate_interctc_outputs"})
    s.refused(key, {"false"}, "leave it out");
  // Names of OWSM's first year.
  s.refused("category_sym", {}, "write lang_sym");
  s.refused("time_sym", {"<notimestamps>"}, "write predict_time: true");
  // Without an n-gram model its weight weighs nothing; attention takes the fastest way anyway.
  for (const char* key :
       {"ngram_weight", "ngram_scorer", "use_flash_attn", "quantize_modules", "quantize_dtype",
        "max_seq_len", "threshold_probability", "max_mask_parallel", "decoding_window",
        "left_context", "right_context", "chunk_size", "display_hypotheses", "return_decoded_hyp",
        "hugging_face_decoder_conf", "hugging_face_decoder_max_length"})
    s.field(key, &S::espnet_only, "accepted; without effect");
}

// Whether a key was set to more than `nothing`; false is nothing, too.
bool is_set_above(const config::Node& value, double nothing) {
  if (value.is_null() || !value.is_scalar() || value.raw() == "false") return false;
  char* end = nullptr;
  const double number = std::strtod(value.raw().c_str(), &end);
  return *end != '\0' || number > nothing || number < 0;
}

}  // namespace

void check_effects(const config::Node& asked, const SearchFacts& model,
                   config::Problems& problems) {
  if (!asked.is_map()) return;
  if (!model.is_owsm) {
    const std::string why = "but the model is a plain recogniser without prompts";
    for (const char* key : {"lang_sym", "predict_time", "text_prev", "condition_on_prev_text",
                            "first_lang_sym", "last_lang_sym", "task_sym"}) {
      const config::Node value = asked[key];
      if (!is_set_above(value, 0) || value.raw() == "<asr>") continue;
      problems.add(value, fmt::format("got {}, {}", value.raw(), why),
                   fmt::format("leave {} out", key));
    }
  }
  const auto warn = [&](const char* key, double nothing, const char* why, const char* fix) {
    if (is_set_above(asked[key], nothing))
      problems.warn(asked[key],
                    fmt::format("got {}, which has no effect: {}", asked[key].raw(), why), fix);
  };
  if (!model.has_lm)
    warn("lm_weight", 0, "there is no language model", "name one as lm_file, or leave it out");
  if (!model.is_owsm_ctc)
    warn("context_len_in_secs", 0, "only OWSM-CTC's windows share a context", "leave it out");
  if (model.is_transducer) {
    for (const char* key : {"ctc_weight", "penalty", "maxlenratio", "minlenratio"})
      warn(key, 0, "the search of a transducer does not ask for it", "leave it out");
    if (model.is_greedy)
      problems.add(asked["ctc_greedy"], "got true, but a transducer's search does not ask CTC",
                   "leave ctc_greedy out; beam_size: 1 is the greedy search of a transducer");
    return;
  }
  if (model.is_seen)
    for (const char* key : {"transducer_conf", "beam_search_config"})
      if (asked[key].is_map() && asked[key].size() > 0)
        problems.warn(asked[key], "has no effect: the model is no transducer", "leave it out");
  if (!model.is_greedy) return;
  const char* fix = model.is_owsm_ctc ? "`_target_: espnet2.bin.s2t_inference_ctc.Speech2Text`, or "
                                        "beam_size with --model, searches"
                                      : "leave ctc_greedy out to search";
  for (const char* key : {"beam_size", "nbest"})
    warn(key, 1, "the best token of each frame gives one text", fix);
  for (const char* key : {"ctc_weight", "penalty", "maxlenratio", "minlenratio"})
    warn(key, 0, "the best token of each frame gives one text", fix);
}

config::Schema<Speech2TextOptions> speech2text_schema() {
  using S = Speech2TextOptions;
  config::Schema<S> s("asr", "A CTC/attention or transducer recogniser.");
  s.field("asr_train_config", &S::asr_train_config, "config.yaml of the training run");
  s.field("asr_model_file", &S::asr_model_file, "weights: .safetensors, .pth or .ckpt");
  s.field("s2t_train_config", &S::s2t_train_config, "the same of an OWSM model");
  s.field("s2t_model_file", &S::s2t_model_file, "the same of an OWSM model");
  s.field("model_tag", &S::model_tag, "a published model: a folder or archive on disk");
  s.field("bpemodel", &S::bpemodel, "sentencepiece model; empty: the one its config names");
  s.field("lm_train_config", &S::lm_train_config,
          "config.yaml of a language model; empty: the one beside lm_file");
  s.field("lm_file", &S::lm_file, "weights of a language model (transformer, seq_rnn)");
  s.field("device", &S::device,
          "auto (the GPU the worker was given, else cpu), cpu, cuda or cuda:N");
  s.field("dtype", &S::dtype, "number format of the model",
          {.one_of = {"float32", "bfloat16", "float16", "float64"}});
  s.field("batch_size", &S::batch_size, "utterances decoded together", {.min = 1});
  s.field("batch_seconds", &S::batch_seconds, "padded audio per batch; 0: no limit",
          {.min = 0, .unit = "seconds"});
  s.field("beam_size", &S::beam_size, "hypotheses kept", {.min = 1});
  s.field("ctc_weight", &S::ctc_weight, "of CTC against the decoder", {.min = 0, .max = 1});
  s.field("lm_weight", &S::lm_weight, "of the language model; null: 1, of OWSM models 0");
  s.field("ctc_greedy", &S::ctc_greedy, "no search: the best token of CTC in each frame");
  s.field("penalty", &S::penalty, "added per token");
  s.field("maxlenratio", &S::maxlenratio, "0: encoder frames; negative: that many tokens");
  s.field("minlenratio", &S::minlenratio, "as maxlenratio, for the shortest");
  s.field("normalize_length", &S::normalize_length, "compare scores per token");
  s.field("nbest", &S::nbest, "alternatives to return", {.min = 1});
  s.group("transducer_conf", &S::transducer_conf, transducer_schema("transducer_conf"));
  s.group("beam_search_config", &S::beam_search_config, transducer_schema("beam_search_config"));
  s.field("token_times", &S::token_times, "begin and end of every token");
  s.field("cut", &S::cut, "where recordings longer than `window` are cut",
          {.one_of = {"energy", "plain", "never"}});
  s.field("window", &S::window, "longest piece of a long recording", {.min = 1, .unit = "seconds"});
  s.field("lang_sym", &S::lang_sym, "language token of an OWSM model; auto: what it hears");
  s.field("task_sym", &S::task_sym, "task token of an OWSM model");
  s.field("predict_time", &S::predict_time, "time tokens of an OWSM model");
  s.field("text_prev", &S::text_prev, "what was said before, for an OWSM model");
  s.field("condition_on_prev_text", &S::condition_on_prev_text,
          "OWSM, long recordings: each window knows the text before it");
  s.field("first_lang_sym", &S::first_lang_sym, "first of the languages to choose from");
  s.field("last_lang_sym", &S::last_lang_sym, "last of the languages to choose from");
  s.field("context_len_in_secs", &S::context_len_in_secs,
          "OWSM-CTC, long recordings: what windows share on each side",
          {.min = 0, .unit = "seconds"});
  s.check([](const config::Node& node, const S& settings, config::Problems& problems) {
    if (const auto mistake = device_mistake(settings.device))
      problems.add(node["device"], *mistake);
  });
  add_espnet_only(s);
  return s;
}

}  // namespace tutti::speech
