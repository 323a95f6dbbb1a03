// From files and command-line overrides to one resolved tree.
//
// Order: each file with its `defaults:` list, `<<` merges and aliases; later files over earlier
// ones (maps deep, lists and scalars replace, explicit null overrides); overrides
// (`a.b=c`, `a.0.b=c`, `+new=1`, `~gone`); then interpolation (`${a.b}`, `${.sibling}`,
// `${num_nodes * num_device}`, `${oc.env:HOME,/tmp}`, `${self_name:}`, `${load_line:tokens.txt}`,
// `${config_path:rel}`). Throws ConfigError with every problem found.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/config/node.h"

namespace tutti::config {

struct LoadOptions {
  std::vector<std::filesystem::path> files;
  std::vector<std::string> overrides;
};

Node load(const LoadOptions& options);
// One YAML text, no merging across files and no interpolation; `name` stands in marks.
Node parse_yaml(std::string_view text, const std::string& name);
// Interpolates a tree whose files are merged already.
Node resolve(const Node& root);

}  // namespace tutti::config
