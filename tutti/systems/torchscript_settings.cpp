#include "tutti/systems/torchscript_settings.h"

#include "tutti/speech/decoding/device_name.h"
#include "tutti/systems/item_model.h"

namespace tutti::systems {

config::Schema<TorchScriptSettings> torchscript_schema() {
  using S = TorchScriptSettings;
  config::Schema<S> s("torchscript", "A model exported from Python.");
  s.field("path", &S::path, "the .pt file", {.required = true});
  s.field("method", &S::method, "what inference calls");
  s.field("device", &S::device,
          "auto (the GPU the worker was given, else cpu), cpu, cuda or cuda:N");
  s.field("sample_rate", &S::sample_rate, "of the audio it takes", {.min = 1, .unit = "Hz"});
  s.field("inputs", &S::inputs, "tensors of the batch, in the order of the arguments");
  s.field("decode", &S::decode, "how the first output becomes hyp",
          {.one_of = {"ctc", "label", "none"}});
  s.field("token_list", &S::token_list, "a file with one token or label per line");
  s.field("token_type", &S::token_type, "kind of tokens", {.one_of = {"char", "word", "bpe"}});
  s.field("weights", &S::weights, "weights laid over those of the file");
  s.field("outputs", &S::outputs, "names of the returned tensors that become fields");
  s.field("loss", &S::loss, "training: output, or the loss of the prediction");
  s.field("target", &S::target, "training: tensor of the batch the prediction is compared with");
  s.field("input_lengths", &S::input_lengths, "training: lengths of the prediction (ctc)");
  s.field("target_lengths", &S::target_lengths, "training: lengths of the target (ctc)");
  s.check([](const config::Node& node, const S& settings, config::Problems& problems) {
    if (const auto mistake = speech::device_mistake(settings.device))
      problems.add(node["device"], *mistake);
  });
  return s;
}

TorchScriptSettings read_torchscript(const config::Node& model) {
  config::Problems problems;
  auto settings = torchscript_schema().parse(model, problems);
  problems.throw_if_any();
  return settings;
}

Fingerprint torchscript_inputs(const config::Node& model) {
  const TorchScriptSettings settings = read_torchscript(model);
  Json keys = config::to_json(model);
  for (const char* key : {"path", "weights", "token_list", "device"}) keys.erase(key);
  Fingerprint inputs;
  inputs.add("model", keys).add_file("path", settings.path);
  if (!settings.weights.empty()) inputs.add_file("weights", settings.weights);
  if (!settings.token_list.empty()) inputs.add_file("token_list", settings.token_list);
  return inputs;
}

std::vector<std::string> torchscript_outputs(const config::Node& model) {
  const TorchScriptSettings settings = read_torchscript(model);
  std::vector<std::string> fields = settings.outputs;
  if (settings.decode != "none") fields.insert(fields.begin(), {"hyp", "ref"});
  return fields;
}

}  // namespace tutti::systems
