#include "tutti/config/load.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/config/merge.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"

namespace tutti::config {
namespace {
namespace fs = std::filesystem;

constexpr std::size_t kMaxDefaultsDepth = 16;

// Reads one file and what its `defaults:` list names.
class FileLoader {
 public:
  explicit FileLoader(Problems& problems) : problems_(problems) {}

  ValuePtr load(const fs::path& file) {
    std::string text;
    try {
      text = read_file(file);
    } catch (const IoError& e) {
      problems_.add({{}, "", e.what(), "check the path"});
      return nullptr;
    }
    return expand_defaults(parse_yaml(text, file.string(), problems_), file);
  }

 private:
  // `defaults:` as ESPnet3 reads it: "name" is name.yaml beside the file; {key: value} is
  // key/value.yaml placed under key; `_self_` says where the file itself comes (last, if absent).
  ValuePtr expand_defaults(const Node& root, const fs::path& file) {
    const Node defaults = root["defaults"];
    if (!defaults.defined()) return root.value();
    auto self = std::make_shared<Value>(*root.value());
    for (std::size_t i = 0; i < self->map.size(); ++i) {
      if (self->map[i].first != "defaults") continue;
      self->map.erase(self->map.begin() + static_cast<std::ptrdiff_t>(i));
      self->key_marks.erase(self->key_marks.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
    if (!defaults.is_list() && !defaults.is_null()) {
      problems_.add(defaults,
                    "got " + defaults.describe_value() + ", expected a list of file names",
                    "write defaults: [name, {key: name}, _self_]");
      return self;
    }
    if (!enter(file, defaults)) return self;
    ValuePtr merged;
    bool self_seen = false;
    for (const Node& entry : defaults.elements()) {
      if (entry.is_scalar() && entry.raw() == "_self_") {
        if (self_seen)
          problems_.add(entry, "_self_ stands twice", "keep one");
        else
          merged = merge(merged, self);
        self_seen = true;
      } else {
        merged = merge(merged, load_entry(entry, file.parent_path()));
      }
    }
    active_.pop_back();
    return self_seen ? merged : merge(merged, self);
  }

  bool enter(const fs::path& file, const Node& at) {
    const fs::path absolute = fs::absolute(file).lexically_normal();
    const bool cycle = std::find(active_.begin(), active_.end(), absolute) != active_.end();
    if (cycle || active_.size() >= kMaxDefaultsDepth) {
      std::string chain;
      for (const fs::path& step : active_) chain += step.filename().string() + " -> ";
      problems_.add(at, (cycle ? "defaults go in a circle: " : "defaults are nested too deep: ") +
                            chain + absolute.filename().string());
      return false;
    }
    active_.push_back(absolute);
    return true;
  }

  ValuePtr load_entry(const Node& entry, const fs::path& folder) {
    if (entry.is_scalar()) return load_named(entry, folder / entry.raw());
    if (!entry.is_map() || entry.size() != 1) {
      problems_.add(entry, "got " + entry.describe_value() + ", expected a name or {key: name}");
      return nullptr;
    }
    const auto [key, name] = entry.items()[0];
    if (name.is_null()) return nullptr;
    if (!name.is_scalar()) {
      problems_.add(name, "got " + name.describe_value() + ", expected the name of a file");
      return nullptr;
    }
    const bool is_path = name.raw().find('/') != std::string::npos;
    const ValuePtr inner =
        load_named(name, is_path ? folder / name.raw() : folder / key / name.raw());
    if (!inner) return nullptr;
    auto wrapped = std::make_shared<Value>();
    wrapped->kind = Kind::kMap;
    wrapped->mark = entry.mark();
    wrapped->map.emplace_back(key, inner);
    wrapped->key_marks.push_back(entry.key_mark(key));
    return wrapped;
  }

  ValuePtr load_named(const Node& at, fs::path file) {
    if (file.extension() != ".yaml") file += ".yaml";
    std::error_code error;
    if (fs::is_regular_file(file, error)) return load(file);
    problems_.add(at, "no file " + file.string(),
                  "names in defaults are taken from the folder of this file");
    return nullptr;
  }

  Problems& problems_;
  std::vector<fs::path> active_;
};

std::string self_name_of(const LoadOptions& options) {
  if (!options.self_name.empty() || options.files.empty()) return options.self_name;
  return options.files[0].stem().string();
}

}  // namespace

Node load_merged(const LoadOptions& options, Problems& problems) {
  ValuePtr root;
  for (const fs::path& file : options.files) {
    const ValuePtr tree = FileLoader(problems).load(file);
    if (!tree || tree->kind == Kind::kNull) continue;  // an empty file changes nothing
    if (tree->kind != Kind::kMap) {
      problems.add(Node(tree),
                   "the file holds " + Node(tree).describe_value() + ", expected a map of keys");
      continue;
    }
    root = merge(root, tree);
  }
  if (!root) {
    Value empty;
    empty.kind = Kind::kMap;
    if (!options.files.empty())
      empty.mark = {std::make_shared<const std::string>(options.files[0].string()), 1, 1};
    root = std::make_shared<Value>(std::move(empty));
  }
  for (const std::string& text : options.overrides) root = apply_override(root, text, problems);
  return Node(root);
}

Node load(const LoadOptions& options, Problems& problems) {
  return resolve(load_merged(options, problems), options.resolvers, self_name_of(options),
                 problems);
}

Node load(const LoadOptions& options) {
  Problems problems;
  Node root = load(options, problems);
  problems.throw_if_any();
  return root;
}

Node resolve(const Node& root) {
  Problems problems;
  const Mark mark = root.mark();
  Node out = resolve(root, Resolvers::standard(),
                     mark.file ? fs::path(*mark.file).stem().string() : "", problems);
  problems.throw_if_any();
  return out;
}

}  // namespace tutti::config
