#include "tutti/systems/models/init_param.h"

#include <fmt/format.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/speech/espnet/model_folder.h"
#include "tutti/speech/loading/state_dict.h"
#include "tutti/trainer/checkpoint/weights.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using Tensors = std::map<std::string, at::Tensor>;

struct Entry {
  std::string text, source, from, to;
  std::vector<std::string> except;
};

std::vector<std::string> texts_of(const config::Node& node) {
  if (node.is_null()) return {};
  if (node.is_scalar()) return {node.as<std::string>()};
  return node.as<std::vector<std::string>>();
}

Entry parse_entry(const std::string& text) {
  const std::vector<std::string> parts = split(text, ':');
  if (parts.size() > 4 || parts[0].empty())
    throw ConfigError(fmt::format(
        "init_param: got '{}', expected SOURCE[:NAME_THERE[:NAME_HERE[:EXCEPT,...]]]", text));
  Entry entry{text, parts[0], "", "", {}};
  if (parts.size() > 1) entry.from = parts[1];
  if (parts.size() > 2) entry.to = parts[2];
  if (parts.size() > 3)
    for (const std::string& name : split(parts[3], ','))
      if (!name.empty()) entry.except.push_back(name);
  return entry;
}

// A published model or a pack names its weights itself; of checkpoints the newest counts.
fs::path weights_of(const std::string& source) {
  const fs::path path = source;
  if (!fs::exists(path))
    throw ConfigError(fmt::format("init_param: {}: no such file or folder", source),
                      "give weights, a checkpoint or a model's folder on this machine");
  const bool is_model = fs::is_directory(path) &&
                        (fs::exists(path / "meta.yaml") || fs::exists(path / "config.yaml") ||
                         fs::is_directory(path / "exp"));
  if (is_model || speech::is_model_archive(path)) return speech::open_model_folder(path).weights;
  return path;
}

speech::StateDict read_source(const std::string& source) {
  const auto weights = trainer::open_weights(weights_of(source));
  speech::StateDict tensors;
  for (const auto& [name, spec] : weights->specs()) tensors[name] = weights->read(name);
  return speech::modern_names(tensors);
}

bool is_below(const std::string& name, const std::string& part) {
  return part.empty() || name == part || name.starts_with(part + ".");
}

std::string renamed(const std::string& name, const Entry& entry) {
  std::string rest = entry.from.empty() ? name : name.substr(entry.from.size());
  if (rest.starts_with('.')) rest.erase(0, 1);
  if (entry.to.empty()) return rest;
  return rest.empty() ? entry.to : entry.to + "." + rest;
}

std::string shape_text(const at::Tensor& tensor) {
  std::vector<std::string> sizes;
  for (const std::int64_t n : tensor.sizes()) sizes.push_back(std::to_string(n));
  return "(" + join(sizes, ", ") + ")";
}

// Lists of names are as long as models are deep.
std::string first_lines(const std::vector<std::string>& lines) {
  constexpr std::size_t kLimit = 12;
  std::string text;
  for (std::size_t i = 0; i < std::min(kLimit, lines.size()); ++i) text += "\n    " + lines[i];
  if (lines.size() > kLimit) text += fmt::format("\n    and {} more", lines.size() - kLimit);
  return text;
}

struct Loaded {
  std::set<std::string> names;  // of the model
  std::string notes;            // what of the sources was not used
};

void load_entry(const Entry& entry, bool ignore_mismatch, Tensors& target, Loaded& loaded) {
  std::vector<std::string> misfits;
  std::vector<std::pair<std::string, at::Tensor>> copies;
  const speech::StateDict source = read_source(entry.source);
  for (const auto& [name, tensor] : source) {
    const bool is_excepted =
        std::any_of(entry.except.begin(), entry.except.end(),
                    [&](const std::string& part) { return is_below(name, part); });
    if (is_excepted || !is_below(name, entry.from)) continue;
    const std::string here = renamed(name, entry);
    const auto found = target.find(here);
    if (found == target.end())
      misfits.push_back(fmt::format("{} {}: the model has no {}", name, shape_text(tensor), here));
    else if (found->second.sizes() != tensor.sizes())
      misfits.push_back(fmt::format("{}: {} there, {} here", here, shape_text(tensor),
                                    shape_text(found->second)));
    else
      copies.emplace_back(here, tensor);
  }
  if (!misfits.empty() && !ignore_mismatch)
    throw DataError(fmt::format("init_param: {}: {} tensors do not fit:{}", entry.text,
                                misfits.size(), first_lines(misfits)),
                    "leave them out by EXCEPT, or set ignore_init_mismatch: true");
  if (copies.empty()) {
    std::set<std::string> parts;
    for (const auto& [name, tensor] : source) parts.insert(split(name, '.')[0]);
    throw DataError(fmt::format("init_param: {}: loads nothing; there are {}", entry.text,
                                join(std::vector<std::string>(parts.begin(), parts.end()), ", ")),
                    "name a part that both have");
  }
  const torch::NoGradGuard no_grad;
  for (const auto& [name, tensor] : copies) {
    target.at(name).copy_(tensor);
    loaded.names.insert(name);
  }
  loaded.notes += fmt::format("\n  {}: {} tensors", entry.text, copies.size());
  if (!misfits.empty())
    loaded.notes +=
        fmt::format(", {} left because they do not fit:{}", misfits.size(), first_lines(misfits));
}

std::set<std::string> freeze(const std::vector<std::string>& parts,
                             const trainer::NamedTensors& parameters) {
  std::set<std::string> frozen;
  for (const std::string& part : parts) {
    std::size_t count = 0;
    for (const auto& [name, tensor] : parameters) {
      if (!is_below(name, part)) continue;
      tensor.set_requires_grad(false);
      frozen.insert(name);
      ++count;
    }
    if (count > 0) continue;
    std::vector<std::string> known;
    for (const auto& [name, tensor] : parameters)
      for (std::size_t dot = name.find('.'); dot != std::string::npos;
           dot = name.find('.', dot + 1))
        known.push_back(name.substr(0, dot));
    const std::string guess = closest_match(part, known);
    throw ConfigError(fmt::format("freeze_param: got '{}', and no parameter is called that", part),
                      guess.empty() ? "see the names with: tutti checkpoint show FILE"
                                    : "did you mean '" + guess + "'?");
  }
  if (!frozen.empty() && frozen.size() == parameters.size())
    throw ConfigError("freeze_param: nothing is left to train");
  return frozen;
}

std::string group_digits(std::int64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

std::string share(std::int64_t part, std::int64_t all) {
  return part == 0 ? "-" : part == all ? "all" : group_digits(part);
}

std::string table(const trainer::NamedTensors& parameters, const std::set<std::string>& loaded,
                  const std::set<std::string>& frozen) {
  struct Row {
    std::int64_t all = 0, loaded = 0, frozen = 0, frozen_new = 0;
  };
  std::vector<std::pair<std::string, Row>> rows;
  for (const auto& [name, tensor] : parameters) {
    const std::string part = split(name, '.')[0];
    if (rows.empty() || rows.back().first != part) rows.emplace_back(part, Row{});
    Row& row = rows.back().second;
    row.all += tensor.numel();
    if (loaded.contains(name)) row.loaded += tensor.numel();
    if (frozen.contains(name)) row.frozen += tensor.numel();
    if (frozen.contains(name) && !loaded.contains(name)) row.frozen_new += tensor.numel();
  }
  std::string text = fmt::format("  {:<16}{:>16}{:>16}{:>16}{:>16}", "part", "parameters", "loaded",
                                 "new", "frozen");
  for (const auto& [part, row] : rows)
    text += fmt::format("\n  {:<16}{:>16}{:>16}{:>16}{:>16}", part, group_digits(row.all),
                        share(row.loaded, row.all), share(row.all - row.loaded, row.all),
                        share(row.frozen, row.all)) +
            (row.frozen_new == 0 ? ""
                                 : fmt::format("  ({} of them new)", group_digits(row.frozen_new)));
  return text;
}

// What is frozen and was loaded from nowhere stays as it was drawn.
std::string frozen_at_random(const std::vector<std::string>& parts,
                             const trainer::NamedTensors& parameters,
                             const std::set<std::string>& loaded) {
  std::vector<std::string> lines;
  for (const std::string& part : parts) {
    std::size_t all = 0, count = 0;
    for (const auto& [name, tensor] : parameters) {
      if (!is_below(name, part)) continue;
      ++all;
      if (!loaded.contains(name)) ++count;
    }
    if (count > 0) lines.push_back(fmt::format("{}: {} of its {} tensors", part, count, all));
  }
  if (lines.empty()) return "";
  return "freeze_param: these were not loaded by init_param and stay at random values:" +
         first_lines(lines);
}

}  // namespace

Beginning start_from(const config::Node& training, trainer::TrainableModel& model) {
  const std::vector<std::string> entries = texts_of(training["init_param"]);
  const std::vector<std::string> frozen_parts = texts_of(training["freeze_param"]);
  if (entries.empty() && frozen_parts.empty()) return {};
  const trainer::NamedTensors parameters = model.named_parameters();
  Tensors target(parameters.begin(), parameters.end());
  for (const auto& [name, tensor] : model.named_buffers()) target[name] = tensor;
  Loaded loaded;
  for (const std::string& entry : entries)
    load_entry(parse_entry(entry), training["ignore_init_mismatch"].value_or(false), target,
               loaded);
  const std::set<std::string> frozen = freeze(frozen_parts, parameters);
  Beginning out;
  out.table =
      "weights to begin with:" + loaded.notes + "\n" + table(parameters, loaded.names, frozen);
  // A checkpoint from elsewhere brings all weights.
  const std::string from = training["fit"]["ckpt_path"].value_or<std::string>("last");
  if (from == "last" || from == "best" || from == "never")
    out.warning = frozen_at_random(frozen_parts, parameters, loaded.names);
  return out;
}

}  // namespace tutti::systems
