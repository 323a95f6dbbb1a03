#include "tutti/speech/loading/state_dict.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/speech/loading/transducer_names.h"
#include "tutti/trainer/checkpoint/pth.h"
#include "tutti/trainer/checkpoint/safetensors.h"

namespace tutti::speech {

namespace {

std::string shape_text(const torch::Tensor& tensor) {
  std::vector<std::string> sizes;
  for (const std::int64_t n : tensor.sizes()) sizes.push_back(std::to_string(n));
  return fmt::format("({})", fmt::join(sizes, ", "));
}

StateDict tensors_of(const torch::nn::Module& model) {
  StateDict tensors;
  for (const auto& item : model.named_parameters()) tensors[item.key()] = item.value();
  for (const auto& item : model.named_buffers()) tensors[item.key()] = item.value();
  return tensors;
}

void append_list(std::string& text, const std::string& title, const std::vector<std::string>& lines,
                 std::size_t limit) {
  if (lines.empty()) return;
  text += fmt::format("\n  {} ({}):", title, lines.size());
  for (std::size_t i = 0; i < std::min(limit, lines.size()); ++i) text += "\n    " + lines[i];
  if (lines.size() > limit) text += fmt::format("\n    and {} more", lines.size() - limit);
}

void strip_shared_prefix(StateDict& weights, const std::string& prefix) {
  const auto has_it = [&](const auto& entry) { return entry.first.starts_with(prefix); };
  if (weights.empty() || !std::all_of(weights.begin(), weights.end(), has_it)) return;
  StateDict stripped;
  for (auto& [name, tensor] : weights) stripped[name.substr(prefix.size())] = tensor;
  weights = std::move(stripped);
}

// Names of the layers in ESPnet's first years.
constexpr std::pair<const char*, const char*> kOldLayers[] = {
    {"encoder.input_layer.", "encoder.embed."},
    {"encoder.norm.", "encoder.after_norm."},
    {"decoder.input_layer.", "decoder.embed."},
    {"decoder.output_norm.", "decoder.after_norm."}};

// Replaces `old_part` in the middle or at the start of a dotted name.
bool rename(std::string& name, const std::string& old_part, const std::string& new_part) {
  const std::size_t at = name.find(old_part);
  if (at == std::string::npos || (at > 0 && name[at - 1] != '.')) return false;
  name.replace(at, old_part.size(), new_part);
  return true;
}

}  // namespace

StateDict read_state_dict(const std::filesystem::path& path) {
  return path.extension() == ".safetensors" ? trainer::read_safetensors(path)
                                            : trainer::read_pth(path);
}

void write_state_dict(const std::filesystem::path& path, const StateDict& weights) {
  if (path.extension() == ".safetensors")
    trainer::write_safetensors(path, weights, {{"format", "pt"}});
  else
    trainer::write_pth(path, weights);
}

StateDict state_dict(const torch::nn::Module& model) {
  StateDict tensors = tensors_of(model);
  for (auto& [name, tensor] : tensors) tensor = tensor.detach().to(torch::kCPU).contiguous();
  return tensors;
}

StateDict modern_names(const StateDict& weights) {
  StateDict renamed = weights;
  strip_shared_prefix(renamed, "module.");
  strip_shared_prefix(renamed, "model.");
  StateDict result;
  for (const auto& [old_name, tensor] : renamed) {
    if (old_name.ends_with(".pe")) continue;
    // Adapters that ESPnet saved beside the weights they are already added to.
    if (old_name.ends_with(".lora_A") || old_name.ends_with(".lora_B")) continue;
    std::string name = old_name;
    for (const auto& [was, is] : kOldLayers)
      if (name.starts_with(was)) name.replace(0, std::string_view(was).size(), is);
    if (!rename(name, "embed.out.0.", "embed.out.")) rename(name, "embed.out.1.", "embed.pos_enc.");
    result[name] = tensor;
  }
  return is_transducer_task(result) ? rename_transducer_task(result) : result;
}

std::string describe_difference(const StateDict& model, const StateDict& weights,
                                std::size_t limit) {
  std::vector<std::string> missing, extra, misshaped, names;
  for (const auto& [name, tensor] : weights) names.push_back(name);
  for (const auto& [name, tensor] : model) {
    const auto found = weights.find(name);
    if (found == weights.end()) {
      const std::string similar = closest_match(name, names);
      missing.push_back(
          name + " " + shape_text(tensor) +
          (similar.empty() || model.contains(similar) ? "" : ", is it '" + similar + "' there?"));
    } else if (found->second.sizes() != tensor.sizes()) {
      misshaped.push_back(fmt::format("{}: {} in the file, {} in the model", name,
                                      shape_text(found->second), shape_text(tensor)));
    }
  }
  for (const auto& [name, tensor] : weights)
    if (!model.contains(name)) extra.push_back(name + " " + shape_text(tensor));
  std::string text;
  append_list(text, "missing in the file", missing, limit);
  append_list(text, "unknown to the model", extra, limit);
  append_list(text, "of another shape", misshaped, limit);
  return text;
}

void load_state_dict(torch::nn::Module& model, const StateDict& weights, const std::string& where) {
  const StateDict source = modern_names(weights);
  StateDict target = tensors_of(model);
  const std::string difference = describe_difference(target, source);
  if (!difference.empty())
    throw DataError(where + ": the weights do not fit the model" + difference,
                    "use the config.yaml that belongs to these weights");
  torch::NoGradGuard no_grad;
  for (auto& [name, tensor] : target) tensor.copy_(source.at(name));
}

void load_published_weights(torch::nn::Module& model, const StateDict& weights,
                            const std::string& where) {
  StateDict source = modern_names(weights);
  for (const auto& [name, tensor] : tensors_of(model)) {
    const bool is_made_here =
        name == "normalize.mean" || name == "normalize.std" || name == "frontend.logmel.melmat";
    if (is_made_here && !source.contains(name) && tensor.count_nonzero().item<std::int64_t>() > 0)
      source[name] = tensor;
  }
  load_state_dict(model, source, where);
}

}  // namespace tutti::speech
