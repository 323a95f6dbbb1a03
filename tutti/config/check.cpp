#include "tutti/config/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "tutti/config/config_files.h"
#include "tutti/config/plugin.h"
#include "tutti/config/rules.h"
#include "tutti/config/schemas/data.h"
#include "tutti/config/schemas/files.h"
#include "tutti/core/text.h"

namespace tutti::config {
namespace {

// Two checks may object to one key: of the second, only what the first and `told` say nothing of.
void add_once(const Problems& first, const Problems& second, std::set<std::string> told,
              Problems& problems) {
  for (const Problem& problem : first.sorted()) {
    told.insert(problem.key);
    problems.add(problem);
  }
  for (const Problem& problem : second.sorted())
    if (!told.count(problem.key)) problems.add(problem);
  for (const Problems* source : {&first, &second})
    for (const Problem& warning : source->warnings()) problems.warn(warning);
}

bool is_parallel_key(const std::string& key) {
  return key == "parallel" || key.starts_with("parallel_");
}

const std::vector<std::string>& parallel_keys() {
  static const std::vector<std::string> kKeys = {
      "env",          "n_workers", "options", "max_retries", "on_error",
      "item_timeout", "resume",    "async",   "interface",   "plugins"};
  return kKeys;
}

// The block's keys at the top level, of a `parallel:` that was left out or is followed by lines without indentation.
void add_top_level(std::optional<FileKind> kind, const Node& root, const Problems& found,
                   Problems& problems) {
  const Node block = root["parallel"];
  const bool may_be_flat =
      !kind || *kind == FileKind::kParallel || (block.defined() && block.is_null());
  for (Problem problem : found.sorted()) {
    const auto& keys = parallel_keys();
    if (may_be_flat && problem.what == "unknown key" &&
        std::find(keys.begin(), keys.end(), problem.key) != keys.end())
      problem.fix = "indent it under parallel:";
    problems.add(problem);
  }
  for (const Problem& warning : found.warnings()) problems.warn(warning);
}

SchemaInfo info_of(FileKind kind) {
  switch (kind) {
    case FileKind::kTraining:
      return training_schema().info();
    case FileKind::kInference:
      return inference_schema().info();
    case FileKind::kMetrics:
      return metrics_schema().info();
    case FileKind::kPublication:
      return publication_schema().info();
    case FileKind::kDemo:
      return demo_schema().info();
    case FileKind::kParallel:
      break;
  }
  return {};
}

void parse_file(FileKind kind, const Node& root, Problems& problems) {
  switch (kind) {
    case FileKind::kTraining:
      training_schema().parse(root, problems);
      break;
    case FileKind::kInference:
      inference_schema().parse(root, problems);
      break;
    case FileKind::kMetrics:
      metrics_schema().parse(root, problems);
      break;
    case FileKind::kPublication:
      publication_schema().parse(root, problems);
      break;
    case FileKind::kDemo:
      demo_schema().parse(root, problems);
      break;
    case FileKind::kParallel:
      check_unknown_keys(root, {"parallel", "plugins"}, {}, problems);
      break;
  }
}

constexpr FileKind kAllKinds[] = {FileKind::kTraining, FileKind::kInference,
                                  FileKind::kMetrics,  FileKind::kPublication,
                                  FileKind::kDemo,     FileKind::kParallel};

// The top-level keys of one kind of file, or of all kinds.
std::set<std::string> known_keys(std::optional<FileKind> kind) {
  std::set<std::string> keys;
  for (const FileKind each : kAllKinds) {
    if (kind && each != *kind) continue;
    for (const FieldInfo& field : info_of(each).fields)
      keys.insert(field.key.substr(0, field.key.find('.')));
    for (const auto& [key, instead] : info_of(each).refused) keys.insert(key);
  }
  return keys;
}

// A map without the keys for which `drop` holds; marks stay.
template <class Predicate>
Node without(const Node& map, const Predicate& drop) {
  auto out = std::make_shared<Value>(*map.value());
  out->map.clear();
  out->key_marks.clear();
  for (const auto& [key, value] : map.value()->map) {
    if (drop(key)) continue;
    out->map.emplace_back(key, value);
    out->key_marks.push_back(map.key_mark(key));
  }
  return Node(std::move(out), map.path());
}

// A word with a slip of the pen. A path may be of another machine, or of a folder that is gone when a
// job that has checkpoints of its own comes back.
void check_ckpt_path(const Node& node, Problems& problems) {
  const std::vector<std::string> words = {"last", "best", "never"};
  const std::string from = node.value_or<std::string>("last");
  if (from.find('/') != std::string::npos || std::filesystem::exists(from) ||
      std::find(words.begin(), words.end(), from) != words.end())
    return;
  const std::string meant = closest_match(from, words);
  problems.add(
      node, fmt::format("got '{}', expected last, best, never or the path of a checkpoint", from),
      meant.empty() ? "" : fmt::format("did you mean '{}'?", meant));
}

void check_training(const Node& root, const Catalogue& catalogue, Problems& problems) {
  const Node task = root["task"];
  const Node model = root["model"];
  if (!task.is_null()) catalogue.check("task", task, problems);
  if (model.is_map() && task.is_null() && !model["_target_"].defined())
    problems.add(model, "got no _target_, and no task is set",
                 "set task: asr, or give model a _target_");
  if (model.is_map() && model["_target_"].defined()) {
    Problems own;  // both kinds of files name models of one group
    catalogue.check("inference model", model, own);
    for (Problem problem : own.sorted()) {
      for (std::string* text : {&problem.what, &problem.fix})
        if (const auto at = text->find("inference model"); at != std::string::npos)
          text->replace(at, 15, "training model");
      problems.add(problem);
    }
    for (const Problem& warning : own.warnings()) problems.warn(warning);
  }
  parse_best_model_criterion(root["best_model_criterion"], problems);
  if (!root["tokenizer"].is_null()) tokenizer_schema().parse(root["tokenizer"], problems);
  if (root["fit"].is_map()) {
    check_unknown_keys(root["fit"], {"ckpt_path"}, {}, problems);
    check_ckpt_path(root["fit"]["ckpt_path"], problems);
  }
  check_world_size(root, problems);
}

void check_inference(const Node& root, const Catalogue& catalogue, Problems& problems) {
  if (!root["model"].is_null()) catalogue.check("inference model", root["model"], problems);
  if (!root["provider"].is_null()) catalogue.check("provider", root["provider"], problems);
  if (!root["runner"].is_null()) catalogue.check("runner", root["runner"], problems);
}

// The names a key expression begins with: "a.b * c[0]" -> a, c.
void collect_names(std::string_view text, std::set<std::string>& names) {
  const auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
  };
  for (std::size_t i = 0; i < text.size();) {
    if (!is_word(text[i])) {
      ++i;
      continue;
    }
    const std::size_t begin = i;
    while (i < text.size() && is_word(text[i])) ++i;
    if (begin == 0 || (text[begin - 1] != '.' && text[begin - 1] != '['))
      names.emplace(text.substr(begin, i - begin));
  }
}

void collect_references(const ValuePtr& value, std::set<const Value*>& seen,
                        std::set<std::string>& names) {
  if (!value) return;
  if (value->kind == Kind::kScalar) {
    for (std::size_t at = value->text.find("${"); at != std::string::npos;
         at = value->text.find("${", at + 2)) {
      const std::size_t end = value->text.find('}', at);
      collect_names(std::string_view(value->text)
                        .substr(at + 2, end == std::string::npos ? end : end - at - 2),
                    names);
    }
    return;
  }
  if (!seen.insert(value.get()).second) return;
  for (const auto& child : value->list) collect_references(child, seen, names);
  for (const auto& entry : value->map) collect_references(entry.second, seen, names);
}

}  // namespace

const char* kind_name(FileKind kind) {
  switch (kind) {
    case FileKind::kTraining:
      return "training";
    case FileKind::kInference:
      return "inference";
    case FileKind::kMetrics:
      return "metrics";
    case FileKind::kPublication:
      return "publication";
    case FileKind::kDemo:
      return "demo";
    case FileKind::kParallel:
      return "parallel";
  }
  return "";
}

std::optional<FileKind> kind_from_name(const std::string& name) {
  for (const FileKind kind : kAllKinds)
    if (name == kind_name(kind)) return kind;
  return {};
}

std::optional<FileKind> detect_kind(const std::vector<std::filesystem::path>& files,
                                    const Node& root) {
  static const std::pair<const char*, FileKind> kStems[] = {
      {"parallel", FileKind::kParallel}, {"train", FileKind::kTraining},
      {"infer", FileKind::kInference},   {"decode", FileKind::kInference},
      {"metric", FileKind::kMetrics},    {"measure", FileKind::kMetrics},
      {"publi", FileKind::kPublication}, {"demo", FileKind::kDemo}};
  static const std::pair<const char*, FileKind> kKeys[] = {{"trainer", FileKind::kTraining},
                                                           {"num_device", FileKind::kTraining},
                                                           {"dataloader", FileKind::kTraining},
                                                           {"optimizer", FileKind::kTraining},
                                                           {"optimizers", FileKind::kTraining},
                                                           {"scheduler", FileKind::kTraining},
                                                           {"task", FileKind::kTraining},
                                                           {"metrics", FileKind::kMetrics},
                                                           {"runner", FileKind::kInference},
                                                           {"provider", FileKind::kInference},
                                                           {"input_key", FileKind::kInference},
                                                           {"pack_model", FileKind::kPublication},
                                                           {"ui", FileKind::kDemo}};
  const std::string stem = files.empty() ? "" : files[0].stem().string();
  // The first word that says something: infer_on_train_set is for inference.
  std::size_t first = std::string::npos;
  std::optional<FileKind> by_name;
  for (const auto& [word, kind] : kStems) {
    // An overlay of parallel blocks may hold nothing else; with more it is a file of another kind.
    if (kind == FileKind::kParallel && files.size() > 1) continue;
    if (const std::size_t at = stem.find(word); at < first) first = at, by_name = kind;
  }
  if (by_name) return by_name;
  for (const auto& [key, kind] : kKeys)
    if (root[key].defined()) return kind;
  const Node data = root["dataset"];
  if (root["model"].defined() && data["test"].defined() && !data["train"].defined())
    return FileKind::kInference;
  return {};
}

std::set<std::string> referenced_keys(const Node& merged) {
  std::set<std::string> names;
  std::set<const Value*> seen;
  collect_references(merged.value(), seen, names);
  return names;
}

void FileChecker::check_parallel_block(const Node& block, Problems& problems) const {
  Problems mistakes;
  check_parallel_mistakes(block, count_gpus_, mistakes);
  Problems others;
  if (const auto found = blocks_.find("parallel"); found != blocks_.end()) {
    found->second(block, catalogue_, others);
  } else if (block.is_map()) {
    check_unknown_keys(block, parallel_keys(), {}, others);
    if (!block["n_workers"].is_null()) check_rule(block["n_workers"], {.min = 1}, others);
    if (!block["options"].is_null() && !block["options"].is_map())
      others.add(block["options"], "got " + block["options"].describe_value() + ", expected a map");
  } else if (!block.is_null()) {
    others.add(block, "got " + block.describe_value() + ", expected a map",
               "write parallel: {env: local, n_workers: 4}");
  }
  // Which names `env` may have is decided here, so that a file can be checked where a backend is
  // not built in.
  add_once(mistakes, others, {block["env"].path()}, problems);
}

void FileChecker::check_block(const std::string& key, const Node& block, Problems& problems) const {
  if (is_parallel_key(key)) return check_parallel_block(block, problems);
  if (const auto found = blocks_.find(key); found != blocks_.end())
    return found->second(block, catalogue_, problems);
  if (key == "dataset") check_dataset(block, catalogue_, problems);
}

// Names of builders, and the keys of `create_dataset:`, which are the builder's.
void FileChecker::check_corpora(const Node& root, Problems& problems) const {
  std::vector<std::string> known;
  for (const Component* builder : catalogue_.components("dataset builder"))
    known.push_back(builder->name);
  std::set<const Component*> builders;
  for (const auto& [name, entry] : corpora_of(root)) {
    const Component* builder = catalogue_.find("dataset builder", name);
    if (builder) builders.insert(builder);
    std::vector<std::string> names = shipped_plugins();
    // Where none are installed (a build without torch) nothing can be said.
    if (builder || (known.empty() && names.empty())) continue;
    if (std::binary_search(names.begin(), names.end(), name)) continue;  // not loaded here
    names.insert(names.end(), known.begin(), known.end());
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    names.insert(names.end(), file_sources_.begin(), file_sources_.end());
    const std::string guess = closest_match(name, names);
    const Node at = entry["data_src"].is_null() ? entry : entry["data_src"];
    problems.add(at, fmt::format("got '{}', expected one of {}", name, join(names, ", ")),
                 guess.empty()
                     ? "name the plugin that has it in plugins:, or a manifest in data_src_args"
                     : fmt::format("did you mean '{}'?", guess));
  }
  const Node block = root["create_dataset"];
  if (builders.size() == 1 && block.is_map()) (*builders.begin())->check(block, problems);
}

void FileChecker::check(std::optional<FileKind> kind, const Node& root,
                        const std::set<std::string>& variables, Problems& problems) const {
  if (!root.is_map()) return;
  const std::set<std::string> known = known_keys(kind);
  const auto known_somewhere = [&](const std::string& key) {
    return is_parallel_key(key) || known.count(key) > 0;
  };
  const auto is_variable = [&](const std::string& key) {
    return variables.count(key) > 0 && !known_somewhere(key);
  };
  const auto dropped = [&](const std::string& key) {
    return is_variable(key) || (key != "parallel" && is_parallel_key(key));
  };
  Problems top;
  if (kind) {
    parse_file(*kind, without(root, dropped), top);
  } else {
    check_unknown_keys(without(root, dropped), {known.begin(), known.end()}, {}, top);
  }
  add_top_level(kind, root, top, problems);
  Problems across;  // what takes several blocks to see, with the arithmetic in the message
  if (!kind || *kind == FileKind::kTraining) check_training(root, catalogue_, across);
  Problems within;
  for (const auto& [key, block] : root.items())
    if (known_somewhere(key)) check_block(key, block, within);
  add_once(across, within, {}, problems);
  if (kind == FileKind::kInference) check_inference(root, catalogue_, problems);
  check_corpora(root, problems);
  for (const auto& [of, rule] : rules_)
    if (kind == of) rule(root, catalogue_, problems);
}

Node load_checked(const LoadOptions& options, std::optional<FileKind> kind, FileChecker& checker,
                  Problems& problems, const std::string& parallel) {
  const LoadedConfig loaded = load_config(options, kind, parallel, checker, problems);
  checker.check(loaded.files.kind, loaded.root, referenced_keys(loaded.files.merged), problems);
  return loaded.root;
}

}  // namespace tutti::config
