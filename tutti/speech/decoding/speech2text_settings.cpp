#include "tutti/speech/decoding/speech2text_settings.h"

namespace tutti::speech {

config::Schema<Speech2TextOptions> speech2text_schema() {
  using S = Speech2TextOptions;
  config::Schema<S> s("asr", "A CTC/attention or transducer recogniser.");
  s.field("asr_train_config", &S::asr_train_config, "config.yaml of the training run");
  s.field("asr_model_file", &S::asr_model_file, "weights: .safetensors, .pth or .ckpt");
  s.field("device", &S::device,
          "auto (the GPU the worker was given, else cpu), cpu, cuda or cuda:N");
  s.field("dtype", &S::dtype, "number format of the model",
          {.one_of = {"float32", "bfloat16", "float16", "float64"}});
  s.field("batch_size", &S::batch_size, "utterances decoded together", {.min = 1});
  s.field("batch_seconds", &S::batch_seconds, "padded audio per batch; 0: no limit",
          {.min = 0, .unit = "seconds"});
  s.field("beam_size", &S::beam_size, "hypotheses kept", {.min = 1});
  s.field("ctc_weight", &S::ctc_weight, "of CTC against the decoder", {.min = 0, .max = 1});
  s.field("penalty", &S::penalty, "added per token");
  s.field("maxlenratio", &S::maxlenratio, "0: encoder frames; negative: that many tokens");
  s.field("minlenratio", &S::minlenratio, "as maxlenratio, for the shortest");
  s.field("normalize_length", &S::normalize_length, "compare scores per token");
  s.field("nbest", &S::nbest, "alternatives to return", {.min = 1});
  s.field("token_times", &S::token_times, "begin and end of every token");
  s.field("cut", &S::cut, "where recordings longer than `window` are cut",
          {.one_of = {"energy", "plain", "never"}});
  s.field("window", &S::window, "longest piece of a long recording", {.min = 1, .unit = "seconds"});
  s.field("lang_sym", &S::lang_sym, "language token of an OWSM model");
  s.field("task_sym", &S::task_sym, "task token of an OWSM model");
  s.field("predict_time", &S::predict_time, "time tokens of an OWSM model");
  return s;
}

}  // namespace tutti::speech
