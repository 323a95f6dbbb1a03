#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/status.h"
#include "tutti/core/users_code.h"
#include "tutti/systems/dataset_builder.h"
#include "tutti/systems/stages.h"

namespace tutti::systems {

void create_dataset(const StageContext& context) {
  const std::filesystem::path data_dir = context.folder("data_dir");
  make_folders(data_dir);
  for (const auto& [source, entry] : corpora_of(context.training)) {
    const auto builder = make_dataset_builder(source, context.training["create_dataset"]);
    log::info("building {} in {}", source, shown_path(data_dir));
    users_code("dataset builder " + source, [&, &builder = *builder] {
      builder.build({.recipe_dir = context.folder("recipe_dir"), .data_dir = data_dir});
    });
  }
}

}  // namespace tutti::systems
