#include "tutti/config/name_flow.h"

#include <fmt/format.h>

#include "tutti/config/merge.h"
#include "tutti/config/recipe_defaults.h"

namespace tutti::config {
namespace {

// Copies `key` of the resolved config of kind `giver` into one that comes later; says so when that changes what the
// file says.
void inherit(const Node& from, const char* giver, const char* key, const Resolvers& resolvers,
             ConfigFiles& to, Problems& problems) {
  if (!from.defined() || !to.merged.defined() || from[key].is_null()) return;
  const Node current = to.merged[key];
  const bool written_by_user = !current.is_null() && !is_recipe_default(current);
  Problems ignored;  // the same ones are reported when the whole file is resolved
  const Node own = resolve(to, resolvers, ignored)[key];
  if (written_by_user && own.is_scalar() && own.raw() != from[key].raw())
    problems.warn(current, fmt::format("'{}' is not used: the {} config says '{}'", own.raw(),
                                       giver, from[key].raw()));
  to.merged = with_key(to.merged, key, from[key]);
}

}  // namespace

ExperimentConfigs resolve_together(ExperimentFiles& files, const Resolvers& resolvers,
                                   Problems& problems) {
  ExperimentConfigs out;
  out.training = resolve(files.training, resolvers, problems);
  // An exp_dir follows its exp_tag, and metrics go with inference: once is enough to say so.
  const std::size_t told = problems.warnings().size();
  const auto inherit_experiment = [&](const Node& from, const char* giver, ConfigFiles& later) {
    for (const char* key : {"exp_tag", "exp_dir"}) {
      Problems repeated;
      inherit(from, giver, key, resolvers, later,
              problems.warnings().size() > told ? repeated : problems);
    }
  };
  for (ConfigFiles* later : {&files.inference, &files.metrics, &files.demo})
    inherit_experiment(out.training, "training", *later);
  inherit(out.training, "training", "data_dir", resolvers, files.inference, problems);
  out.inference = resolve(files.inference, resolvers, problems);
  for (ConfigFiles* later : {&files.metrics, &files.demo})
    inherit_experiment(out.inference, "inference", *later);
  inherit(out.inference, "inference", "inference_dir", resolvers, files.metrics, problems);
  out.metrics = resolve(files.metrics, resolvers, problems);
  out.demo = resolve(files.demo, resolvers, problems);
  return out;
}

bool lacks_experiment(const ConfigFiles& files) {
  const Node& merged = files.merged;
  if (!merged.defined() || !is_recipe_default(merged["exp_tag"]) ||
      !is_recipe_default(merged["exp_dir"]))
    return false;
  return !merged["inference_dir"].defined() || is_recipe_default(merged["inference_dir"]);
}

}  // namespace tutti::config
