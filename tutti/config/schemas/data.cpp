#include "tutti/config/schemas/data.h"

#include <fmt/format.h>

#include "tutti/core/text.h"

namespace tutti::config {
Schema<DatasetEntry> dataset_entry_schema() {
  using S = DatasetEntry;
  Schema<S> s("dataset.<train|valid|test> entry", "One corpus.");
  s.field("name", &S::name, "what results are filed under");
  s.field("data_src", &S::data_src,
          "where it comes from: recipe/task, a manifest or a builder's name");
  s.field("data_src_args", &S::data_src_args, "arguments of data_src");
  s.field("transform", &S::transform, "applied to each sample");
  s.field("fields", &S::fields, "further tensors of the batch by name: {NAME: {path, type}}");
  return s;
}

Schema<DatasetSettings> dataset_schema() {
  using S = DatasetSettings;
  Schema<S> s("dataset", "Training, validation and test corpora.");
  s.field("recipe_dir", &S::recipe_dir, "folder of the recipe");
  s.field("train", &S::train, "entries, concatenated");
  s.field("valid", &S::valid, "entries, concatenated");
  s.field("test", &S::test, "entries, each a test set of its own");
  s.field("preprocessor", &S::preprocessor, "applied to each sample; augments in training only");
  return s;
}

void add_data_components(Catalogue& catalogue) {
  catalogue.add("dataset", dataset_schema(),
                {"espnet3.components.data.data_organizer.DataOrganizer"});
}

static void check_entry(const Node& entry, const Catalogue& catalogue, Problems& problems) {
  dataset_entry_schema().parse(entry, problems);
  if (!entry.is_map() || entry["transform"].is_null()) return;
  const Node transform = entry["transform"];
  const Node name = transform.is_map() ? transform["_target_"] : transform;
  if (name.is_scalar() && catalogue.find("transform", name.raw())) {
    catalogue.check("transform", transform, problems);
    return;
  }
  std::vector<std::string> known;
  for (const Component* component : catalogue.components("transform"))
    known.push_back(component->name);
  problems.add(
      name.is_null() ? transform : name,
      fmt::format("got {}, expected a transform that a plugin added{}", name.describe_value(),
                  known.empty() ? " (there is none)" : ": " + join(known, ", ")),
      "remove it, or name the plugin that has it in plugins:");
}

void check_dataset(const Node& dataset, const Catalogue& catalogue, Problems& problems) {
  if (dataset.is_null()) return;
  if (dataset.is_map() && dataset["_target_"].defined())
    catalogue.check("dataset", dataset, problems);
  else
    dataset_schema().parse(dataset, problems);
  for (const char* split : {"train", "valid", "test"})
    for (const Node& entry : dataset[split].elements()) check_entry(entry, catalogue, problems);
  const bool has_train = dataset["train"].size() > 0;
  const bool has_valid = dataset["valid"].size() > 0;
  if (has_train != has_valid)
    problems.add(dataset,
                 fmt::format("got {} without {}", has_train ? "train" : "valid",
                             has_train ? "valid" : "train"),
                 "give both, or neither");
  const Node preprocessor = dataset["preprocessor"];
  if (preprocessor.is_map() && preprocessor["_target_"].defined())
    catalogue.require("preprocessor", preprocessor, problems);
}

}  // namespace tutti::config
