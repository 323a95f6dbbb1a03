#include "tutti/trainer/init.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <cmath>

#include "tutti/config/schemas/files.h"
#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::trainer {
namespace {

bool is_chainer(const std::string& method) {
  return method == "chainer" || method == "chainer_espnet1";
}

void fill_matrix(at::Tensor tensor, const std::string& method) {
  if (method == "xavier_uniform") {
    torch::nn::init::xavier_uniform_(tensor);
  } else if (method == "xavier_normal") {
    torch::nn::init::xavier_normal_(tensor);
  } else if (method == "kaiming_uniform") {
    torch::nn::init::kaiming_uniform_(tensor, 0, torch::kFanIn, torch::kReLU);
  } else if (method == "kaiming_normal") {
    torch::nn::init::kaiming_normal_(tensor, 0, torch::kFanIn, torch::kReLU);
  } else if (method == "normal") {
    tensor.normal_(0, 0.02);
  } else {
    const auto fan_in = static_cast<double>(tensor.numel() / tensor.size(0));
    tensor.normal_(0, 1 / std::sqrt(fan_in));
  }
}

// Gates lie in the order input, forget, cell, output.
void open_forget_gates(torch::nn::Module& module) {
  for (auto& item : module.named_parameters(/*recurse=*/false))
    if (item.key().find("bias") != std::string::npos) {
      const std::int64_t n = item.value().size(0);
      item.value().narrow(0, n / 4, n / 2 - n / 4).fill_(1);
    }
}

void finish_layer(torch::nn::Module& layer, const std::string& method) {
  if (auto* embedding = layer.as<torch::nn::EmbeddingImpl>()) {
    embedding->reset_parameters();
  } else if (auto* norm = layer.as<torch::nn::LayerNormImpl>()) {
    norm->reset_parameters();
  } else if (auto* group = layer.as<torch::nn::GroupNormImpl>()) {
    group->reset_parameters();
  } else if (auto* batch1 = layer.as<torch::nn::BatchNorm1dImpl>()) {
    batch1->reset_parameters();
  } else if (auto* batch2 = layer.as<torch::nn::BatchNorm2dImpl>()) {
    batch2->reset_parameters();
  } else if (is_chainer(method) &&
             (layer.as<torch::nn::LSTMImpl>() || layer.as<torch::nn::GRUImpl>() ||
              layer.as<torch::nn::RNNImpl>())) {
    open_forget_gates(layer);
  }
}

}  // namespace

void initialize_tensors(const NamedTensors& parameters, const std::string& method) {
  const auto& known = config::init_methods();
  if (std::find(known.begin(), known.end(), method) == known.end()) {
    const std::string guess = closest_match(method, known);
    throw ConfigError(
        fmt::format("init: got '{}', expected null or one of {}", method, join(known, ", ")),
        guess.empty() ? "" : "did you mean " + guess + "?");
  }
  torch::NoGradGuard no_grad;
  for (const auto& [name, parameter] : parameters) {
    at::Tensor tensor = parameter;
    if (tensor.dim() > 1)
      fill_matrix(tensor, method);
    else if (is_chainer(method) || ("." + name).find(".bias") != std::string::npos)
      tensor.zero_();
  }
}

void initialize(torch::nn::Module& module, const std::string& method) {
  if (method.empty()) return;
  NamedTensors parameters;
  for (const auto& item : module.named_parameters())
    parameters.emplace_back(item.key(), item.value());
  initialize_tensors(unique_parameters(parameters).tensors, method);
  torch::NoGradGuard no_grad;
  finish_layer(module, method);
  // Without itself: it may be under construction, or on the stack.
  for (const auto& part : module.modules(/*include_self=*/false)) finish_layer(*part, method);
}

void initialize(TrainableModel& model, const std::string& method) {
  if (method.empty()) return;
  auto* module = dynamic_cast<ModuleModel*>(&model);
  if (!module)
    throw ConfigError(fmt::format("init: got '{}', but this model brings its own weights", method),
                      "remove init, or initialise before saving the TorchScript file");
  initialize(*module->module(), method);
}

}  // namespace tutti::trainer
