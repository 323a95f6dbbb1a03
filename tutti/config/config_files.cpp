#include "tutti/config/config_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tutti/config/merge.h"
#include "tutti/config/plugin.h"
#include "tutti/config/recipe_defaults.h"
#include "tutti/core/text.h"

namespace tutti::config {
namespace {

Node with_absolute_recipe(const Node& merged) {
  const Node recipe = merged["recipe_dir"];
  if (!recipe.is_scalar() || recipe.raw().find("${") != std::string::npos) return merged;
  if (recipe.raw().empty()) return merged;
  auto value = std::make_shared<Value>(*recipe.value());
  value->text = std::filesystem::absolute(recipe.raw()).lexically_normal().string();
  if (value->text.size() > 1 && value->text.back() == '/') value->text.pop_back();
  return with_key(merged, "recipe_dir", Node(value));
}

// "inference:+a.b=c", "+inference:a.b=c" and "a.b=c" in their parts.
struct Addressed {
  std::optional<FileKind> kind;
  std::string sign;  // "", "+", "++" or "~"
  std::string path;  // "a.b"
  std::string rest;  // "=c", or "" after ~
  std::string text() const { return sign + path + rest; }
  std::string forced() const { return fmt::format("++{}{}", path, rest); }
};

void take_sign(std::string& text, std::string& sign) {
  const std::size_t end = std::min(text.find_first_not_of("+~"), text.size());
  sign += text.substr(0, end);
  text.erase(0, end);
}

Addressed parse_address(const std::string& text) {
  Addressed out;
  std::string left = text;
  take_sign(left, out.sign);
  const std::size_t colon = left.find(':');
  if (colon < left.find('=')) {
    out.kind = kind_from_name(left.substr(0, colon));
    if (out.kind) left.erase(0, colon + 1);
    take_sign(left, out.sign);
  }
  const std::size_t equals = std::min(left.find('='), left.size());
  out.path = std::string(trim(left.substr(0, equals)));
  out.rest = left.substr(equals);
  return out;
}

bool covers(const std::string& key, const std::string& path) {
  return path == key || path.starts_with(key + ".");
}

// What the file's schema says against the key, when it is set whether or not it is there.
std::optional<Problem> objection(const ConfigFiles& file, const Addressed& change,
                                 const FileChecker& checker, const Resolvers& resolvers) {
  Problems problems;
  ConfigFiles changed = file;
  changed.merged = Node(apply_override(file.merged.value(), change.forced(), problems));
  if (!problems.empty()) return problems.sorted().front();
  const Node root = resolve(changed, resolvers, problems);
  problems = {};  // those of the values are found when the whole file is checked
  checker.check(file.kind, root, referenced_keys(changed.merged), problems);
  for (const Problem& problem : problems.sorted())
    if (problem.is_unknown_key && covers(problem.key, change.path)) return problem;
  return {};
}

std::string names_of(const std::vector<ConfigFiles*>& files) {
  std::vector<std::string> names;
  for (const ConfigFiles* file : files)
    names.emplace_back(file->kind ? kind_name(*file->kind) : "config");
  return join(names, " and ");
}

// Dotted paths of the maps in a tree, outermost first.
void collect_maps(const Node& node, std::vector<std::string>& paths) {
  std::vector<Node> inner;
  for (const auto& [key, child] : node.items())
    if (child.is_map()) inner.push_back(child);
  for (const Node& child : inner) paths.push_back(child.path());
  for (const Node& child : inner) collect_maps(child, paths);
}

// Of `beam_size`, the place it has: `model.beam_size`. First where it is written, then where the schema knows it.
std::string place_of(const ConfigFiles& file, const Addressed& change, const FileChecker& checker,
                     const Resolvers& resolvers) {
  if (change.path.find('.') != std::string::npos) return {};
  std::vector<std::string> maps;
  collect_maps(file.merged, maps);
  if ((!file.kind || *file.kind == FileKind::kParallel) && file.merged["parallel"].is_null())
    maps.emplace_back("parallel");  // what such a file is for, though it need not say so
  for (const std::string& map : maps)
    if (file.merged.find(map + "." + change.path).defined()) return map + "." + change.path;
  // Blocks whose schemas are strict; free ones would take anything.
  const std::vector<std::string> strict = {"model",
                                           "trainer",
                                           "parallel",
                                           "optimizer",
                                           "scheduler",
                                           "tokenizer",
                                           "dataset.preprocessor"};
  for (const std::string& map : maps) {
    if (std::none_of(strict.begin(), strict.end(), [&](const auto& s) { return covers(s, map); }))
      continue;
    Addressed there = change;
    there.path = map + "." + change.path;
    if (!objection(file, there, checker, resolvers)) return there.path;
  }
  return {};
}

// A key that is not there and that the schema does not know: the nearest of the suggestions.
void fail_unknown(const ConfigFiles& file, const Addressed& change, const Problem& reason,
                  const std::string& place, Problems& problems) {
  Problems own;
  apply_override(file.merged.value(), change.text(), own);
  for (Problem problem : own.sorted()) {
    const bool has_guess = problem.fix.starts_with("did you mean");
    const bool is_elsewhere = reason.is_unknown_key && reason.what != "unknown key";
    // The schema knows the block, the file has none.
    const std::size_t dot = reason.is_unknown_key ? reason.key.rfind('.') : std::string::npos;
    const std::string block = dot == std::string::npos ? "" : reason.key.substr(0, dot);
    if (is_elsewhere)
      problem.what = reason.what, problem.fix = reason.fix;
    else if (!block.empty() && file.merged.find(block).is_null())
      problem.what = fmt::format("no key '{}' under '{}'", reason.key.substr(dot + 1), block),
      problem.fix = reason.fix;
    else if (!place.empty())
      problem.fix = fmt::format("did you mean '{}{}'?", place, change.rest);
    else if (!has_guess && !reason.fix.empty())
      problem.fix = reason.fix;
    problems.add(problem);
  }
}

// parallel_gpu for "parallel_gpu" and for "gpu".
std::string block_named(const Node& merged, const std::string& name) {
  for (const std::string& full : {name, "parallel_" + name})
    if (full.starts_with("parallel") && merged[full].is_map()) return full;
  return {};
}

std::vector<std::string> named_blocks(const Node& merged) {
  std::vector<std::string> names;
  for (const auto& [key, value] : merged.items())
    if (key.starts_with("parallel_")) names.push_back(key);
  return names;
}

// The fix for a name that no file has.
std::string named_or_how(const std::vector<ConfigFiles*>& files, const std::string& name) {
  std::set<std::string> known;
  for (const ConfigFiles* file : files)
    for (const std::string& block : named_blocks(file->merged)) known.insert(block);
  return known.empty() ? "add parallel_" + name + ": {env: ..., n_workers: ...} to a file"
                       : "named blocks: " + join({known.begin(), known.end()}, ", ");
}

// `parallel=gpu` chooses a named block: only files that have one of this name are meant.
std::string chosen_block(const Addressed& change) {
  if (change.path != "parallel" || change.rest.size() < 2) return {};
  const std::string name(trim(change.rest.substr(1)));
  const bool is_value = name.empty() || name == "null" || name == "~" ||
                        name.find_first_of("[{\"'$") != std::string::npos;
  return is_value ? std::string() : name;
}

void apply_one(const std::string& text, const std::vector<ConfigFiles*>& files,
               const FileChecker& checker, const Resolvers& resolvers, Problems& problems) {
  const Addressed change = parse_address(text);
  if (covers("plugins", change.path)) {  // they decide what the command line may say
    problems.add({command_line_mark(), text, "plugins are loaded before the command line is read",
                  "name them in a file; a second one may hold nothing else"});
    return;
  }
  std::vector<ConfigFiles*> candidates;
  for (ConfigFiles* file : files)
    if (!change.kind || file->kind == change.kind) candidates.push_back(file);
  if (candidates.empty()) {
    problems.add({command_line_mark(), text,
                  fmt::format("no {} config was given", kind_name(*change.kind)),
                  fmt::format("files given: {}", names_of(files))});
    return;
  }
  if (const std::string name = chosen_block(change); !name.empty()) {
    const auto lacks = [&](const ConfigFiles* file) {
      return block_named(file->merged, name).empty();
    };
    if (!std::all_of(candidates.begin(), candidates.end(), lacks))
      std::erase_if(candidates, lacks);
    else if (candidates.size() > 1)
      return problems.add(
          {command_line_mark(), text,
           fmt::format("no block of this name in the {} configs", names_of(candidates)),
           named_or_how(candidates, name)});
  }
  const bool sets = !change.path.empty() && !change.rest.empty();
  std::vector<std::pair<ConfigFiles*, std::string>> targets;
  std::optional<Problem> reason;
  const ConfigFiles* reason_of = nullptr;  // the file whose schema has the nearest key
  const auto has_guess = [](const Problem& problem) {
    return problem.fix.starts_with("did you mean");
  };
  for (ConfigFiles* file : candidates) {
    const bool exists = !change.path.empty() && file->merged.find(change.path).defined();
    if (exists || !sets || (candidates.size() == 1 && !change.sign.empty())) {
      if (exists || candidates.size() == 1) targets.emplace_back(file, change.text());
      continue;
    }
    const auto against = objection(*file, change, checker, resolvers);
    if (!against)
      targets.emplace_back(file, change.sign == "+" ? change.text() : change.forced());
    else if (!reason || (!has_guess(*reason) && has_guess(*against)))
      reason = against, reason_of = file;
  }
  for (const auto& [file, form] : targets)
    file->merged = Node(apply_override(file->merged.value(), form, problems));
  if (!targets.empty()) return;
  std::string place;
  for (const ConfigFiles* file : candidates)
    if (place.empty() && sets) place = place_of(*file, change, checker, resolvers);
  if (candidates.size() == 1) return fail_unknown(*candidates[0], change, *reason, place, problems);
  const std::string kinds = names_of(candidates);
  const ConfigFiles* nearest = reason_of ? reason_of : candidates[0];
  const std::string address =
      fmt::format("to add it to one of them: {}:+{}{}",
                  nearest->kind ? kind_name(*nearest->kind) : "training", change.path, change.rest);
  std::string fix = sets ? address : "check the name";
  if (!place.empty())
    fix = fmt::format("did you mean '{}{}'?", place, change.rest);
  else if (reason && has_guess(*reason))
    fix = reason->fix + " Or " + address;
  problems.add({command_line_mark(), text,
                fmt::format("no key '{}' in the {} configs", change.path, kinds), fix});
}

// `parallel: gpu` in a file or on the command line.
void follow_name(ConfigFiles& file, Problems& problems) {
  const Node block = file.merged["parallel"];
  if (!block.is_scalar() || block.raw().find("${") != std::string::npos) return;
  const std::string found = block_named(file.merged, block.raw());
  const auto known = named_blocks(file.merged);
  if (!found.empty())
    file.merged = with_key(file.merged, "parallel", file.merged[found]);
  else
    problems.add(block, fmt::format("got '{}', expected a block or the name of one", block.raw()),
                 known.empty() ? "write parallel: {env: local, n_workers: 4}"
                               : "named blocks here: " + join(known, ", "));
}

}  // namespace

ConfigFiles read_config_files(std::optional<FileKind> kind,
                              const std::vector<std::filesystem::path>& files, Problems& problems) {
  ConfigFiles out;
  out.kind = kind;
  if (files.empty()) return out;
  out.self_name = files[0].stem().string();
  out.merged = load_merged({.files = files}, problems);
  if (!out.kind) out.kind = detect_kind(files, out.merged);
  if (out.kind) out.merged = with_recipe_defaults(*out.kind, out.merged);
  return out;
}

void apply_overrides(const std::vector<std::string>& overrides,
                     const std::vector<ConfigFiles*>& files, const FileChecker& checker,
                     const Resolvers& resolvers, Problems& problems) {
  std::vector<ConfigFiles*> given;
  for (ConfigFiles* file : files)
    if (file->merged.defined()) given.push_back(file);
  if (given.empty()) return;
  for (const std::string& text : overrides) apply_one(text, given, checker, resolvers, problems);
  for (ConfigFiles* file : given) file->merged = with_own_limits(file->merged);
}

void choose_parallel(const std::string& name, const std::vector<ConfigFiles*>& files,
                     Problems& problems) {
  bool found = name.empty();
  for (ConfigFiles* file : files) {
    if (!file->merged.is_map()) continue;
    const auto blocks = named_blocks(file->merged);
    const std::string block = name.empty() ? "" : block_named(file->merged, name);
    if (!block.empty()) {
      file->merged = with_key(file->merged, "parallel", file->merged[block]);
      found = true;
      continue;
    }
    follow_name(*file, problems);
    const Node own = file->merged["parallel"];
    if (name.empty() && (own.is_null() || is_recipe_default(own)))
      for (const auto& other : blocks)
        problems.warn({file->merged.key_mark(other), other,
                       "nothing uses this block: work runs as `parallel:` says",
                       "add --parallel " + other});
  }
  if (found) return;
  problems.add({command_line_mark(), "--parallel " + name, "no block of this name in the configs",
                named_or_how(files, name)});
}

Node resolve(const ConfigFiles& files, const Resolvers& resolvers, Problems& problems) {
  if (!files.merged.defined()) return {};
  return resolve(with_absolute_recipe(files.merged), resolvers, files.self_name, problems);
}

static std::vector<Node> named_plugins(const ConfigFiles& files) {
  std::vector<Node> lists;
  const auto add = [&](const Node& list) {
    if (!list.is_null() && (!list.is_list() || list.size() > 0)) lists.push_back(list);
  };
  add(files.merged["plugins"]);
  for (const auto& [key, block] : files.merged.items())
    if (key == "parallel" || key.starts_with("parallel_")) add(block["plugins"]);
  return lists;
}

// As a list like the others.
static Node corpus_plugins(const ConfigFiles& files, const FileChecker& checker,
                           const Resolvers& resolvers) {
  Problems unread;  // the same ones come again when the file is resolved to be used
  auto shipped = std::make_shared<Value>(Value{.kind = Kind::kList});
  for (const auto& [name, entry] : checker.corpora_of(resolve(files, resolvers, unread)))
    if (std::filesystem::exists(shipped_plugin(name)))
      shipped->list.push_back(text_value(shipped_plugin(name).string()));
  return Node(shipped);
}

std::vector<Node> plugin_lists(const ConfigFiles& files, const FileChecker& checker,
                               const Resolvers& resolvers) {
  std::vector<Node> lists = named_plugins(files);
  const Node corpora = corpus_plugins(files, checker, resolvers);
  if (corpora.size() > 0) lists.push_back(corpora);
  return lists;
}

void load_plugins(const ConfigFiles& files, const FileChecker& checker, PluginRegistry& registry,
                  Problems& problems) {
  for (const Node& list : checker.loads_corpora()
                              ? plugin_lists(files, checker, registry.resolvers())
                              : named_plugins(files))
    load_plugins(list, registry, problems);
}

LoadedConfig load_config(const LoadOptions& options, std::optional<FileKind> kind,
                         const std::string& parallel, FileChecker& checker, Problems& problems) {
  LoadedConfig out;
  out.files = read_config_files(kind, options.files, problems);
  if (!out.files.merged.defined())  // overrides alone
    out.files.merged = Node(std::make_shared<Value>(Value{.kind = Kind::kMap}));
  if (!options.self_name.empty()) out.files.self_name = options.self_name;
  Resolvers resolvers = options.resolvers;
  PluginRegistry registry(checker.catalogue(), resolvers);
  checker.offer(registry);
  load_plugins(out.files, checker, registry, problems);
  apply_overrides(options.overrides, {&out.files}, checker, resolvers, problems);
  choose_parallel(parallel, {&out.files}, problems);
  out.root = resolve(out.files, resolvers, problems);
  return out;
}

}  // namespace tutti::config
