// Tasks, inference models, providers, runners and metrics: their names and keys. What the values
// mean is the business of the rooms that have the code.
#include "tutti/config/schemas/files.h"

namespace tutti::config {
namespace {

struct OpaqueBlock {
  Node value;
};
struct Nothing {};

using Keys = std::vector<std::pair<const char*, const char*>>;

Schema<OpaqueBlock> keys_only(const char* name, const char* doc, const Keys& keys) {
  Schema<OpaqueBlock> s(name, doc);
  for (const auto& [key, key_doc] : keys) s.field(key, &OpaqueBlock::value, key_doc);
  return s;
}

Schema<OpaqueBlock> recognizer(const char* name, const char* doc, const std::string& prefix) {
  Schema<OpaqueBlock> s = keys_only(name, doc,
                                    {{"beam_size", "hypotheses kept"},
                                     {"ctc_weight", "weight of CTC against attention, 0 to 1"},
                                     {"lm_weight", "weight of the language model"},
                                     {"ngram_weight", "weight of the n-gram model"},
                                     {"penalty", "added per token"},
                                     {"maxlenratio", "longest output, as a part of the input"},
                                     {"minlenratio", "shortest output, as a part of the input"},
                                     {"nbest", "hypotheses returned"},
                                     {"batch_size", "utterances decoded together"},
                                     {"dtype", "float32, float16 or bfloat16"},
                                     {"device", "cpu or cuda"},
                                     {"token_type", "kind of tokens; null: the model's"},
                                     {"bpemodel", "sentencepiece model; null: the model's"},
                                     {"normalize_length", "divide scores by length"},
                                     {"lm_train_config", "config of the language model"},
                                     {"lm_file", "weights of the language model"},
                                     {"transducer_conf", "search of a transducer"},
                                     {"time_sync", "time-synchronous search"},
                                     {"streaming", "decode while audio arrives"},
                                     {"lang_sym", "language token"},
                                     {"task_sym", "task token"},
                                     {"token_times", "begin and end of every token"},
                                     {"batch_seconds", "padded audio per batch"},
                                     {"cut", "where long recordings are cut: energy, plain, never"},
                                     {"window", "seconds a piece of a long recording may have"},
                                     {"predict_time", "predict times of segments"}});
  s.field(prefix + "_train_config", &OpaqueBlock::value, "config of the model");
  s.field(prefix + "_model_file", &OpaqueBlock::value,
          "weights: .pth, .ckpt, .safetensors or our checkpoint");
  return s;
}

Schema<OpaqueBlock> error_rate(const char* name, const char* doc) {
  return keys_only(name, doc,
                   {{"ref_key", "field with the reference"},
                    {"hyp_key", "field with the hypothesis"},
                    {"clean_types", "text cleaners"},
                    {"bpemodel", "sentencepiece model (ter)"},
                    {"token_list", "tokens (ter)"}});
}

}  // namespace

void add_speech_components(Catalogue& catalogue) {
  catalogue.add("task", Schema<Nothing>("asr", "CTC/attention speech recognition."),
                {"espnet3.systems.asr.task.ASRTask", "espnet2.tasks.asr.ASRTask"});
  catalogue.add("task", Schema<Nothing>("asr_transducer", "Transducer speech recognition."),
                {"espnet3.systems.asr.transducer_task.ASRTransducerTask",
                 "espnet2.tasks.asr_transducer.ASRTransducerTask"});
  catalogue.add("task", Schema<Nothing>("s2t", "OWSM-style speech to text."),
                {"espnet2.tasks.s2t.S2TTask"});

  catalogue.add("inference model",
                recognizer("asr", "A CTC/attention or transducer recogniser.", "asr"),
                {"espnet2.bin.asr_inference.Speech2Text",
                 "espnet2.bin.asr_transducer_inference.Speech2Text"});
  catalogue.add("inference model", recognizer("s2t", "An OWSM-style model.", "s2t"),
                {"espnet2.bin.s2t_inference.Speech2Text"});
  catalogue.add("inference model", keys_only("torchscript", "Any model exported from Python.",
                                             {{"path", "the .pt file"},
                                              {"method", "what inference calls; forward"},
                                              {"device", "cpu or cuda"},
                                              {"sample_rate", "of the audio it takes"},
                                              {"inputs", "tensors of the batch it takes"},
                                              {"decode", "ctc, label or none"},
                                              {"token_list", "one token or label per line"},
                                              {"token_type", "char, word or bpe"},
                                              {"weights", "weights laid over the file's"},
                                              {"outputs", "names of what it returns"},
                                              {"loss", "training: output, ctc, cross_entropy, ..."},
                                              {"target", "training: what is predicted"},
                                              {"input_lengths", "training: lengths for ctc"},
                                              {"target_lengths", "training: lengths for ctc"}}));

  catalogue.add("provider",
                keys_only("inference_provider", "Builds dataset and model once per worker.",
                          {{"params", "passed to the runner"}}),
                {"espnet3.systems.base.inference_provider.InferenceProvider",
                 "espnet3.runner.inference_provider.InferenceProvider"});
  catalogue.add("runner",
                keys_only("inference_runner", "Runs the model on one item.",
                          {{"params", "passed to forward"}}),
                {"espnet3.systems.base.inference_runner.InferenceRunner",
                 "espnet3.runner.inference_runner.InferenceRunner"});

  catalogue.add("metric", error_rate("wer", "Word error rate."),
                {"espnet3.systems.asr.metrics.wer.WER"});
  catalogue.add("metric", error_rate("cer", "Character error rate."),
                {"espnet3.systems.asr.metrics.cer.CER"});
  catalogue.add("metric", error_rate("ter", "Token error rate."),
                {"espnet3.systems.asr.metrics.ter.TER"});
}

}  // namespace tutti::config
