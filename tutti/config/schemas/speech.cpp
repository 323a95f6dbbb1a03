// Tasks, providers and runners: their names and keys. What the values
// mean is the business of the rooms that have the code.
#include "tutti/config/schemas/files.h"

namespace tutti::config {
namespace {

struct Nothing {};

}  // namespace

void add_task_components(Catalogue& catalogue) {
  catalogue.add("task", Schema<Nothing>("asr", "CTC, attention or transducer speech recognition."),
                {"espnet3.systems.asr.task.ASRTask", "espnet2.tasks.asr.ASRTask"});
  catalogue.add("task", Schema<Nothing>("s2t", "OWSM-style speech to text."),
                {"espnet2.tasks.s2t.S2TTask"});
  catalogue.add("task", Schema<Nothing>("s2t_ctc", "OWSM-CTC; decoded, not trained."),
                {"espnet2.tasks.s2t_ctc.S2TTask"});
  for (const char* name :
       {"asr_transducer", "espnet3.systems.asr.transducer_task.ASRTransducerTask",
        "espnet2.tasks.asr_transducer.ASRTransducerTask"})
    catalogue.instead("task", name, "use task: asr with decoder: transducer");
}

void add_speech_components(Catalogue& catalogue) {
  add_task_components(catalogue);

  const std::string params = "a plugin's own provider and runner take params; these have none";
  Schema<Nothing> provider("inference_provider", "Builds dataset and model once per worker.");
  provider.refused("params", {}, params);
  catalogue.add("provider", provider,
                {"espnet3.systems.base.inference_provider.InferenceProvider",
                 "espnet3.runner.inference_provider.InferenceProvider"});
  Schema<Nothing> runner("inference_runner", "Runs the model on one item.");
  runner.refused("params", {}, params);
  catalogue.add("runner", runner,
                {"espnet3.systems.base.inference_runner.InferenceRunner",
                 "espnet3.runner.inference_runner.InferenceRunner"});
}

}  // namespace tutti::config
