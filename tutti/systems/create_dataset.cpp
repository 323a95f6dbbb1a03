#include <set>

#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/systems/dataset_builder.h"
#include "tutti/systems/stages.h"

namespace tutti::systems {

void create_dataset(const StageContext& context) {
  const std::filesystem::path data_dir = context.folder("data_dir");
  make_folders(data_dir);
  std::set<std::string> sources;
  for (const char* split : {"train", "valid", "test"})
    for (const auto& entry : context.training["dataset"][split].elements())
      if (const std::string source = data_source_of(context.training, entry); !source.empty())
        sources.insert(source);
  for (const auto& source : sources) {
    log::info("building {} in {}", source, data_dir.string());
    make_dataset_builder(source)->build({.recipe_dir = context.folder("recipe_dir"),
                                         .data_dir = data_dir,
                                         .options = context.training["create_dataset"]});
  }
}

}  // namespace tutti::systems
