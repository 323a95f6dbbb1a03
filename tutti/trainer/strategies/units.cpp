#include "tutti/trainer/strategies/units.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <set>

#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::trainer {
namespace {

std::string owner_of(const std::string& parameter) {
  const std::size_t dot = parameter.rfind('.');
  return dot == std::string::npos ? "" : parameter.substr(0, dot);
}

// Prefixes ("encoder.layers.3.") of the modules of the wanted classes.
std::vector<std::string> unit_modules(TrainableModel& model,
                                      const std::vector<std::string>& classes) {
  auto* whole = dynamic_cast<ModuleModel*>(&model);
  if (!whole)
    throw ConfigError("trainer.strategy.units: this model has no modules to cut by class",
                      "use unit_min_params instead");
  std::vector<std::string> prefixes;
  std::set<std::string> found, present;
  for (const auto& item : whole->module()->named_modules("", /*include_self=*/false)) {
    const std::string name = module_class(*item.value());
    present.insert(name);
    if (std::find(classes.begin(), classes.end(), name) == classes.end()) continue;
    found.insert(name);
    prefixes.push_back(item.key() + ".");
  }
  for (const std::string& wanted : classes) {
    if (found.count(wanted)) continue;
    const std::vector<std::string> all(present.begin(), present.end());
    const std::string guess = closest_match(wanted, all);
    throw ConfigError(
        fmt::format("trainer.strategy.units: the model has no module of class '{}', only {}",
                    wanted, join(all, ", ")),
        guess.empty() ? "" : fmt::format("did you mean '{}'?", guess));
  }
  return prefixes;
}

// The innermost unit module that holds the parameter; empty: none.
std::string unit_of(const std::string& parameter, const std::vector<std::string>& prefixes) {
  std::string longest;
  for (const std::string& prefix : prefixes)
    if (parameter.rfind(prefix, 0) == 0 && prefix.size() > longest.size()) longest = prefix;
  return longest;
}

// Appends to the unit of this name, kind of tensor, optimizer and trainability, or opens one.
void append(std::vector<UnitSpec>& units, const UnitCut& cut, const std::string& name,
            bool resident, const std::pair<std::string, at::Tensor>& item) {
  const auto owner = cut.optimizer_of.find(item.first);
  const std::size_t optimizer = owner == cut.optimizer_of.end() ? 0 : owner->second;
  const auto fits = [&](const UnitSpec& unit) {
    const at::Tensor& other = unit.parameters[0].second;
    return unit.name == name && unit.resident == resident && unit.optimizer == optimizer &&
           other.scalar_type() == item.second.scalar_type() &&
           other.requires_grad() == item.second.requires_grad();
  };
  const auto found = std::find_if(units.begin(), units.end(), fits);
  if (found != units.end())
    found->parameters.push_back(item);
  else
    units.push_back({name, {item}, resident, optimizer});
}

}  // namespace

std::string module_class(const torch::nn::Module& module) {
  std::string name = module.name();
  if (const std::size_t colon = name.rfind("::"); colon != std::string::npos)
    name = name.substr(colon + 2);
  if (name.size() > 4 && name.compare(name.size() - 4, 4, "Impl") == 0)
    name.resize(name.size() - 4);
  return name;
}

std::vector<UnitSpec> cut_into_units(TrainableModel& model, const UnitCut& cut) {
  std::vector<UnitSpec> units;
  const NamedTensors parameters = unique_parameters(model.named_parameters()).tensors;
  const auto prefixes =
      cut.classes.empty() ? std::vector<std::string>{} : unit_modules(model, cut.classes);
  std::string open_unit, last_owner;
  std::int64_t open_numel = 0;
  for (const auto& item : parameters) {
    const auto& [name, tensor] = item;
    if (tensor.numel() == 0) continue;
    if (cut.vectors_apart && tensor.dim() <= 1) {
      append(units, cut, "vectors", /*resident=*/true, item);
      continue;
    }
    if (!cut.classes.empty()) {
      const std::string prefix = unit_of(name, prefixes);
      append(units, cut, prefix.empty() ? "root" : prefix.substr(0, prefix.size() - 1),
             prefix.empty(), item);
      continue;
    }
    // By size: cut only between modules, whose own tensors are used together.
    const std::string owner = owner_of(name);
    if (open_unit.empty() || (open_numel >= cut.min_params && owner != last_owner)) {
      open_unit = name;
      open_numel = 0;
    }
    append(units, cut, open_unit, /*resident=*/false, item);
    open_numel += tensor.numel();
    last_owner = owner;
  }
  return units;
}

}  // namespace tutti::trainer
