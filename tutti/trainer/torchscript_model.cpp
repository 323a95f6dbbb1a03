#include "tutti/trainer/torchscript_model.h"

#include <fmt/format.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <map>

#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::trainer {
namespace {

using Loss = std::function<at::Tensor(const at::Tensor& prediction, const at::Tensor& target)>;

const std::map<std::string, Loss>& losses() {
  static const std::map<std::string, Loss> all = {
      {"cross_entropy",
       [](const at::Tensor& p, const at::Tensor& t) { return torch::cross_entropy_loss(p, t); }},
      {"mse", [](const at::Tensor& p, const at::Tensor& t) { return torch::mse_loss(p, t); }},
      {"l1", [](const at::Tensor& p, const at::Tensor& t) { return torch::l1_loss(p, t); }},
      {"bce_with_logits",
       [](const at::Tensor& p, const at::Tensor& t) {
         return torch::binary_cross_entropy_with_logits(p, t);
       }},
      {"nll", [](const at::Tensor& p, const at::Tensor& t) { return torch::nll_loss(p, t); }},
  };
  return all;
}

class TorchScriptModel final : public TrainableModel {
 public:
  explicit TorchScriptModel(TorchScriptOptions options) : options_(std::move(options)) {
    std::vector<std::string> known = {"output", "ctc"};
    for (const auto& [name, loss] : losses()) known.push_back(name);
    if (std::find(known.begin(), known.end(), options_.loss) == known.end())
      throw ConfigError(fmt::format("model.loss: got '{}', expected one of {}", options_.loss,
                                    join(known, ", ")));
    // A profiling executor computes its first passes in another order than later ones, and a run
    // that goes on begins with first passes again: it would end with other weights. Without
    // profiles every pass is compiled and computed alike.
    torch::jit::getProfilingMode() = false;
    try {
      module_ = torch::jit::load(options_.path.string(), at::kCPU);
    } catch (const std::exception& error) {  // c10::Error, or what the parser of its code throws
      const auto* from_torch = dynamic_cast<const c10::Error*>(&error);
      throw IoError(
          fmt::format("model.path: cannot load {} as TorchScript: {}", options_.path.string(),
                      from_torch ? from_torch->what_without_backtrace() : error.what()),
          "save it with torch.jit.script(model).save(path)");
    }
  }

  StepOutput training_step(const Batch& batch) override {
    std::vector<c10::IValue> inputs;
    // Lengths come on the host; a file expects all of its inputs on one device.
    at::Device device = at::kCPU;
    for (const std::string& name : options_.inputs)
      if (!batch[name].device().is_cpu()) device = batch[name].device();
    for (const std::string& name : options_.inputs)
      inputs.emplace_back(batch[name].to(device, /*non_blocking=*/true));
    const c10::IValue value = module_.forward(std::move(inputs));
    StepOutput out;
    if (options_.loss == "output") {
      read_output(value, out);
    } else {
      const auto [prediction, lengths] = read_prediction(value);
      const at::Tensor& target = batch[options_.target];
      out.loss = options_.loss == "ctc"
                     ? torch::ctc_loss(prediction.transpose(0, 1).to(at::kFloat), target,
                                       lengths.defined() ? lengths.to(at::kLong)
                                                         : frames_of(batch[options_.input_lengths],
                                                                     prediction.size(1)),
                                       batch[options_.target_lengths].to(at::kLong))
                     : losses().at(options_.loss)(prediction, target);
      out.weight = static_cast<double>(target.size(0));
    }
    out.stats["loss"] = out.loss.detach();
    return out;
  }

  NamedTensors named_parameters() override {
    NamedTensors out;
    for (const auto& item : module_.named_parameters()) out.emplace_back(item.name, item.value);
    return out;
  }
  NamedTensors named_buffers() override {
    NamedTensors out;
    for (const auto& item : module_.named_buffers()) out.emplace_back(item.name, item.value);
    return out;
  }
  void set_training(bool training) override { module_.train(training); }
  void to(at::Device device, std::optional<at::ScalarType> floating) override {
    module_.to(device);
    if (!floating) return;
    torch::NoGradGuard no_grad;
    for (const auto& [name, tensor] : named_parameters())
      if (tensor.is_floating_point()) at::Tensor(tensor).set_data(tensor.to(*floating));
    for (const auto& [name, tensor] : named_buffers())
      if (tensor.is_floating_point()) at::Tensor(tensor).set_data(tensor.to(*floating));
  }

 private:
  // The prediction and, where forward returns them, its lengths.
  std::pair<at::Tensor, at::Tensor> read_prediction(const c10::IValue& value) const {
    if (value.isTensor()) return {value.toTensor(), {}};
    if (value.isTuple()) {
      const auto& parts = value.toTupleRef().elements();
      if (parts.size() >= 2 && parts[0].isTensor() && parts[1].isTensor())
        return {parts[0].toTensor(), parts[1].toTensor()};
    }
    throw ConfigError(
        fmt::format("model.loss: {} needs forward to return the prediction, or (prediction, "
                    "lengths), got {}",
                    options_.loss, value.tagKind()),
        "return the prediction, or use loss: output");
  }

  // Lengths in the prediction's frames, by the ratio of the longest: models stride.
  static at::Tensor frames_of(const at::Tensor& lengths, std::int64_t num_frames) {
    const at::Tensor exact = lengths.to(at::kDouble);
    const double longest = std::max(1.0, exact.max().item<double>());
    return (exact * (static_cast<double>(num_frames) / longest))
        .round()
        .clamp(1, static_cast<double>(num_frames))
        .to(at::kLong);
  }

  // The loss, or (loss, {name: tensor}, weight), as ESPnet's models return it.
  static void read_output(const c10::IValue& value, StepOutput& out) {
    if (value.isTensor()) {
      out.loss = value.toTensor();
      return;
    }
    if (!value.isTuple())
      throw ConfigError(
          fmt::format("model.loss: output needs forward to return the loss or (loss, "
                      "stats, weight), got {}",
                      value.tagKind()));
    const auto& parts = value.toTupleRef().elements();
    if (parts.empty() || !parts[0].isTensor())
      throw ConfigError("model: the first value forward returns is not a tensor");
    out.loss = parts[0].toTensor();
    if (parts.size() > 1 && parts[1].isGenericDict())
      for (const auto& item : parts[1].toGenericDict())
        if (item.key().isString() && item.value().isTensor())
          out.stats[item.key().toStringRef()] = item.value().toTensor().detach();
    if (parts.size() > 2)
      out.weight = parts[2].isTensor() ? parts[2].toTensor().item<double>()
                                       : parts[2].toScalar().to<double>();
  }

  TorchScriptOptions options_;
  torch::jit::Module module_;
};

}  // namespace

std::unique_ptr<TrainableModel> make_torchscript_model(const TorchScriptOptions& options) {
  return std::make_unique<TorchScriptModel>(options);
}

}  // namespace tutti::trainer
