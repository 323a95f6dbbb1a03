#include "tutti/trainer/model.h"

#include <torch/torch.h>

#include <unordered_map>

namespace tutti::trainer {

NamedTensors ModuleModel::named_parameters() {
  NamedTensors out;
  for (const auto& item : module_->named_parameters()) out.emplace_back(item.key(), item.value());
  return out;
}

NamedTensors ModuleModel::named_buffers() {
  NamedTensors out;
  for (const auto& item : module_->named_buffers()) out.emplace_back(item.key(), item.value());
  return out;
}

void ModuleModel::set_training(bool training) { module_->train(training); }

void ModuleModel::to(at::Device device, std::optional<at::ScalarType> floating) {
  module_->to(device);
  if (floating) module_->to(*floating);  // torch leaves integer parameters and buffers alone
}

UniqueParameters unique_parameters(const NamedTensors& named) {
  UniqueParameters out;
  std::unordered_map<const void*, std::string> first_name;
  for (const auto& [name, tensor] : named) {
    const auto [found, added] = first_name.emplace(tensor.unsafeGetTensorImpl(), name);
    if (added)
      out.tensors.emplace_back(name, tensor);
    else
      out.aliases.emplace(name, found->second);
  }
  return out;
}

}  // namespace tutti::trainer
