#include "tutti/trainer/checkpoint/lightning.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <set>

#include "tutti/core/error.h"
#include "tutti/trainer/checkpoint/pickle.h"
#include "tutti/trainer/checkpoint/pth.h"

namespace tutti::trainer {
namespace {

using Kind = PickleValue::Kind;

// The value under a path of keys; null where there is none.
const PickleValue* find_value(const PickleValue& root, std::initializer_list<const char*> path) {
  const PickleValue* value = &root;
  for (const char* name : path) {
    const PickleValue* next = nullptr;
    for (const auto& [key, item] : value->entries)
      if (key->text == name) next = item.get();
    if (!next) return nullptr;
    value = next;
  }
  return value;
}

std::optional<std::int64_t> find_number(const PickleValue& root,
                                        std::initializer_list<const char*> path) {
  const PickleValue* value = find_value(root, path);
  return value && value->kind == Kind::kInt ? std::optional(value->integer) : std::nullopt;
}

// What stands before a model's own names in the file: "", "model.".
std::string prefix_of(const PickleValue& weights, const NamedTensors& parameters) {
  std::string prefix;
  bool found = false;
  for (const auto& [key, item] : weights.entries) {
    const std::string& name = key->text;
    const std::string& own = parameters.front().first;
    if (!name.ends_with(own)) continue;
    const std::string before = name.substr(0, name.size() - own.size());
    if (!before.empty() && before.back() != '.') continue;
    if (found && before.size() >= prefix.size()) continue;
    prefix = before;
    found = true;
  }
  return prefix;
}

at::Tensor step_tensor(const PickleValue& value) {
  const double step = value.kind == Kind::kTensor  ? value.tensor.item<double>()
                      : value.kind == Kind::kFloat ? value.number
                                                   : static_cast<double>(value.integer);
  return at::full({}, static_cast<std::int64_t>(step), at::kLong);
}

// "optimizer/exp_avg/NAME" of the n-th parameter of the file.
void take_optimizer(const PickleValue& root, const std::vector<std::string>& order,
                    const std::string& where, TensorMap& out) {
  const PickleValue* optimizers = find_value(root, {"optimizer_states"});
  if (!optimizers || optimizers->items.empty()) return;
  if (optimizers->items.size() > 1)
    throw DataError(
        fmt::format("{}: it has {} optimizers, expected one", where, optimizers->items.size()),
        "take its weights alone");
  const PickleValue* state = find_value(*optimizers->items[0], {"state"});
  if (!state) return;
  for (const auto& [key, slots] : state->entries) {
    if (key->integer < 0 || key->integer >= static_cast<std::int64_t>(order.size()))
      throw DataError(
          fmt::format("{}: optimizer state {} belongs to no parameter", where, key->integer));
    const std::string& name = order[static_cast<std::size_t>(key->integer)];
    for (const auto& [slot, value] : slots->entries) {
      if (slot->text == "step")
        out["optimizer/step/" + name] = step_tensor(*value);
      else if (value->kind == Kind::kTensor)
        out[fmt::format("optimizer/{}/{}", slot->text, name)] = value->tensor;
    }
  }
}

}  // namespace

LightningFile read_lightning(const std::filesystem::path& path, const NamedTensors& parameters,
                             const NamedTensors& buffers) {
  const PicklePtr root = read_pickle(path);
  const PickleValue* weights = find_value(*root, {"state_dict"});
  const auto step = find_number(*root, {"global_step"});
  const auto epoch = find_number(*root, {"epoch"});
  if (!weights || !step || !epoch)
    throw DataError(path.string() +
                        ": not a checkpoint of Lightning (state_dict, global_step and "
                        "epoch were expected)",
                    fmt::format("name a checkpoint folder of tutti, or a .ckpt of Lightning; to "
                                "begin with its weights alone: init_param: [{}]",
                                path.string()));
  LightningFile out;
  std::set<std::string> trained, own;
  for (const auto& [name, tensor] : parameters) trained.insert(name), own.insert(name);
  for (const auto& [name, tensor] : buffers) own.insert(name);
  const std::string prefix = prefix_of(*weights, parameters);
  std::vector<std::string> order;
  for (const auto& [key, item] : weights->entries) {
    if (key->text.rfind(prefix, 0) != 0 || item->kind != Kind::kTensor) continue;
    const std::string name = key->text.substr(prefix.size());
    if (trained.count(name)) order.push_back(name);
    if (own.count(name)) out.checkpoint.model[name] = item->tensor;
  }
  take_optimizer(*root, order, path.string(), out.checkpoint.optimizer);
  // At an epoch's end `processed` counts it already, while `epoch` is its number.
  const auto done =
      find_number(*root, {"loops", "fit_loop", "epoch_progress", "current", "processed"});
  const auto batches = find_number(
      *root, {"loops", "fit_loop", "epoch_loop.batch_progress", "current", "processed"});
  out.inside_epoch = done && *done == *epoch && batches.value_or(0) > 0;
  out.checkpoint.trainer = {{"epoch", done.value_or(*epoch + 1)}, {"step", *step}};
  return out;
}

}  // namespace tutti::trainer
