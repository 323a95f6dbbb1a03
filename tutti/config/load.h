// From files and command-line overrides to one resolved tree.
//
//   Node config = load({.files = {"conf/training.yaml", "conf/parallel_slurm.yaml"},
//                       .overrides = {"trainer.devices=2", "+seed=7", "~init"}});
//
// Order: each file with its `defaults:` list, `<<` merges and aliases; later files over earlier
// ones (maps deep, lists and scalars replace, explicit null overrides); overrides (merge.h); then
// interpolation (`${a.b}`, `${.sibling}`, `${a[0]}`, `${num_nodes * num_device}`,
// `${oc.env:HOME,/tmp}`, `${self_name:}`, `${load_line:tokens.txt}`, `${config_path:rel}`).
// All functions throw ConfigError with every problem found, or collect them where a Problems is
// given; a file that cannot be read is a problem too. No state is kept between calls.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/config/node.h"
#include "tutti/config/problem.h"
#include "tutti/config/resolvers.h"

namespace tutti::config {

struct LoadOptions {
  std::vector<std::filesystem::path> files;
  std::vector<std::string> overrides;
  Resolvers resolvers = Resolvers::standard();
  std::string self_name;  // what `${self_name:}` gives; empty: the stem of the first file
};

Node load(const LoadOptions& options);
// The tree may have holes (nulls) where a problem was found; good only for finding more of them.
Node load(const LoadOptions& options, Problems& problems);
// The same without interpolation, for programs that lay more configs over it.
Node load_merged(const LoadOptions& options, Problems& problems);

// One YAML text, no merging across files and no interpolation; `name` stands in marks.
Node parse_yaml(std::string_view text, const std::string& name);
Node parse_yaml(std::string_view text, const std::string& name, Problems& problems);

// "lr: 0.005" for "lr:0.005", which YAML takes for a text; empty for anything that is none.
std::string unglued(std::string_view text);

// Interpolates a tree whose files are merged already. A value that came from `${...}` has the mark
// of the place that uses it; what lies inside it keeps its own marks.
Node resolve(const Node& root);
Node resolve(const Node& root, const Resolvers& resolvers, const std::string& self_name,
             Problems& problems);

}  // namespace tutti::config
