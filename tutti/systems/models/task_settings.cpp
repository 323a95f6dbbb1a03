#include "tutti/systems/models/task_settings.h"

namespace tutti::systems {

namespace {

bool is_task(const config::Node& task, const char* name) {
  return task.is_scalar() &&
         (task.raw() == name || task.raw().ends_with(std::string(".") + name + ".S2TTask"));
}

}  // namespace

bool is_s2t(const config::Node& training) { return is_task(training["task"], "s2t"); }

bool is_s2t_ctc(const config::Node& training) { return is_task(training["task"], "s2t_ctc"); }

bool is_transducer_task(const config::Node& training) {
  return training["espnet_task"].value_or<std::string>("") == "asr_transducer";
}

void check_trainable(const config::Node& training, config::Problems& problems) {
  if (is_s2t_ctc(training))
    problems.add(
        training["task"],
        "got '" + training["task"].raw() + "': models of this task are decoded, not trained",
        "train task: espnet2.tasks.s2t.S2TTask or espnet2.tasks.asr.ASRTask");
}

speech::OwsmSymbols owsm_symbols(const config::Node& training) {
  const config::Node from = training["dataset"]["preprocessor"];
  const config::Node conf = training["model"]["model_conf"];
  speech::OwsmSymbols s;
  s.no_times = from["notime_symbol"].value_or(s.no_times);
  s.first_time = from["first_time_symbol"].value_or(s.first_time);
  s.last_time = from["last_time_symbol"].value_or(s.last_time);
  s.not_available = from["na_symbol"].value_or(s.not_available);
  s.window = from["speech_length"].value_or(s.window);
  s.resolution = from["speech_resolution"].value_or(s.resolution);
  s.sos = conf["sym_sos"].value_or(s.sos);
  s.eos = conf["sym_eos"].value_or(s.eos);
  s.previous = conf["sym_sop"].value_or(s.previous);
  return s;
}

}  // namespace tutti::systems
