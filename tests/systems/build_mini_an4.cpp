// build_mini_an4 FOLDER: makes the recipe that BuiltRecipe's tests copy, and leaves it in FOLDER.
#include "tests/systems/built_recipe.h"

int main(int, char** argv) {
  using namespace tutti;
  using namespace tutti::systems;
  try {
    std::filesystem::remove_all(argv[1]);
    if (shared_archive("mini_an4.tar.gz").empty()) return 0;  // the tests say so
    const RecipeFolder recipe("mini_an4");
    build_mini_an4(recipe);
    copy_recipe(recipe.path(), argv[1]);
    return 0;
  } catch (const std::exception&) {
    return report_and_exit_code();
  }
}
