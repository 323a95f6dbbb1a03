// A model exported from Python with torch.jit.script(model).save(path), run over a manifest.
#include <fmt/format.h>
#include <torch/script.h>
#include <torch/torch.h>

#include "tutti/config/schema.h"
#include "tutti/core/error.h"
#include "tutti/core/rounding.h"
#include "tutti/data/collate.h"
#include "tutti/speech/text/token_list.h"
#include "tutti/systems/item_model.h"
#include "tutti/systems/torchscript_settings.h"
#include "tutti/systems/training/planned_source.h"
#include "tutti/trainer/checkpoint/pth.h"
#include "tutti/trainer/checkpoint/safetensors.h"

namespace tutti::systems {
namespace {

// Numbers of a tensor as nested lists.
Json tensor_json(const at::Tensor& tensor) {
  if (tensor.dim() == 0)
    return tensor.is_floating_point()
               ? Json(round_significant(tensor.item<double>(), kOutputDigits))
               : Json(tensor.item<std::int64_t>());
  Json list = Json::array();
  for (const at::Tensor& row : tensor.unbind(0)) list.push_back(tensor_json(row));
  return list;
}

std::vector<at::Tensor> tensors_of(const c10::IValue& value, const std::string& method) {
  if (value.isTensor()) return {value.toTensor()};
  std::vector<at::Tensor> tensors;
  if (value.isTuple()) {
    for (const auto& part : value.toTupleRef().elements())
      if (part.isTensor()) tensors.push_back(part.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& part : value.toTensorVector()) tensors.push_back(part);
  }
  if (tensors.empty())
    throw ConfigError(
        fmt::format("model.method: {} returns {}, expected a tensor or a tuple of them", method,
                    value.tagKind()));
  return tensors;
}

class TorchScriptItemModel final : public ItemModel {
 public:
  explicit TorchScriptItemModel(TorchScriptSettings settings)
      : settings_(std::move(settings)), device_(speech::parse_device(settings_.device)) {
    try {
      module_ = torch::jit::load(settings_.path, device_);
    } catch (const c10::Error& error) {
      throw IoError(fmt::format("model.path: cannot load {} as TorchScript: {}", settings_.path,
                                error.what_without_backtrace()),
                    "save it with torch.jit.script(model).save(path)");
    }
    module_.eval();
    if (!settings_.weights.empty()) load_weights();
    if (!module_.find_method(settings_.method))
      throw ConfigError(
          fmt::format("model.method: {} has no method '{}'", settings_.path, settings_.method),
          "mark it with @torch.jit.export before scripting");
    if (!settings_.token_list.empty()) tokens_ = speech::TokenList::read(settings_.token_list);
    if (settings_.decode != "none" && tokens_.size() == 0)
      throw ConfigError(fmt::format("model.token_list: decode: {} needs one", settings_.decode));
  }

  int sample_rate() const override { return settings_.sample_rate; }
  void prepare(data::Sample& sample) const override {
    if (const std::string problem = data::audio_problem(sample.speech); !problem.empty())
      throw DataError(sample.uid + ": the audio " + problem);
  }

  std::vector<Json> run(const std::vector<data::Sample>& samples,
                        std::shared_ptr<void> /*begun*/) override {
    torch::NoGradGuard no_grad;
    trainer::Batch batch = to_trainer_batch(data::collate(samples, {}), settings_.sample_rate);
    std::vector<c10::IValue> inputs;
    for (const auto& name : settings_.inputs) inputs.emplace_back(batch[name].to(device_));
    auto outputs =
        tensors_of(module_.get_method(settings_.method)(std::move(inputs)), settings_.method);
    for (at::Tensor& output : outputs) output = output.to(at::kCPU);
    const auto rows = static_cast<std::int64_t>(samples.size());
    if (outputs[0].dim() == 0 || outputs[0].size(0) != rows)
      throw ConfigError(
          fmt::format("model: {} of {} utterances came back from {}",
                      outputs[0].dim() == 0 ? 0 : outputs[0].size(0), rows, settings_.method),
          "the first dimension of what it returns is the batch");
    std::vector<Json> results;
    for (std::int64_t row = 0; row < rows; ++row)
      results.push_back(result(samples[static_cast<std::size_t>(row)], outputs, row));
    return results;
  }

 private:
  Json result(const data::Sample& sample, const std::vector<at::Tensor>& outputs,
              std::int64_t row) const {
    Json fields = {{"utt_id", sample.uid}, {"ref", sample.text}};
    if (settings_.decode == "ctc") {
      fields["hyp"] = greedy_text(outputs, row);
    } else if (settings_.decode == "label") {
      const at::Tensor scores = outputs[0][row].to(at::kFloat).log_softmax(-1);
      const auto best = scores.argmax().item<std::int64_t>();
      fields["hyp"] = tokens_.token(static_cast<int>(best));
      fields["score"] = round_score(scores[best].item<double>());
    }
    for (std::size_t i = 0; i < settings_.outputs.size() && i < outputs.size(); ++i)
      fields[settings_.outputs[i]] = tensor_json(outputs[i][row]);
    return fields;
  }

  // (B, T, V) and, where the model returns them, the lengths (B): repeats and blanks removed.
  std::string greedy_text(const std::vector<at::Tensor>& outputs, std::int64_t row) const {
    const at::Tensor best = outputs[0][row].argmax(-1).contiguous();
    std::int64_t length = best.size(0);
    if (outputs.size() > 1 && outputs[1].dim() == 1)
      length = std::min(length, outputs[1][row].item<std::int64_t>());
    std::string text;
    std::int64_t last = 0;
    for (std::int64_t t = 0; t < length; ++t) {
      const auto id = best[t].item<std::int64_t>();
      if (id != 0 && id != last) append(text, tokens_.token(static_cast<int>(id)));
      last = id;
    }
    while (!text.empty() && text.front() == ' ') text.erase(0, 1);
    return text;
  }

  // A character, a word ("<space>" is between them), or a sentencepiece with its word mark.
  void append(std::string& text, const std::string& token) const {
    static const std::string kMark = "\u2581";
    if (token == "<space>")
      text += ' ';
    else if (token.compare(0, kMark.size(), kMark) == 0)
      text += ' ' + token.substr(kMark.size());
    else if (settings_.token_type == "word")
      text += (text.empty() ? "" : " ") + token;
    else
      text += token;
  }

  void load_weights() {
    const std::filesystem::path path = settings_.weights;
    const auto weights = path.extension() == ".safetensors" ? trainer::read_safetensors(path)
                                                            : trainer::read_pth(path);
    const auto take = [&](const std::string& name, at::Tensor into) {
      const auto found = weights.find(name);
      if (found == weights.end())
        throw DataError(fmt::format("{}: has no '{}', which {} needs", settings_.weights, name,
                                    settings_.path));
      into.copy_(found->second);
    };
    torch::NoGradGuard no_grad;
    for (const auto& item : module_.named_parameters()) take(item.name, item.value);
    for (const auto& item : module_.named_buffers()) take(item.name, item.value);
  }

  const TorchScriptSettings settings_;
  const torch::Device device_;
  torch::jit::Module module_;
  speech::TokenList tokens_;
};

}  // namespace

std::unique_ptr<ItemModel> load_torchscript_item_model(const config::Node& model) {
  return std::make_unique<TorchScriptItemModel>(read_torchscript(model));
}

}  // namespace tutti::systems
