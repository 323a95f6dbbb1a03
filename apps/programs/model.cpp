// tutti model: what a model folder holds, and a pack made of it.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "apps/arguments.h"
#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/core/log.h"
#include "tutti/systems/models/model_info.h"

namespace {

using namespace tutti;

int run_program(int argc, char** argv) {
  CLI::App app{"Look at a trained model, and make a pack of it", "tutti model"};
  app.footer(
      apps::example("tutti model show exp/asr/model_pack\ntutti model convert FOLDER my_pack"));
  app.require_subcommand(1);
  std::filesystem::path folder, out;
  bool as_json = false, force = false, quiet = false;
  auto* show = app.add_subcommand("show", "task, sizes, tokens, languages and what is missing");
  auto* convert = app.add_subcommand("convert", "a pack of a published model");
  for (auto* command : {show, convert}) {
    command->add_option("folder", folder, "published folder or archive, pack, or experiment")
        ->required();
    command->add_flag("--quiet", quiet, "warnings and errors only");
  }
  show->add_flag("--json", as_json, "one JSON object");
  convert->add_option("out", out, "folder to make")->required();
  convert->add_flag("--force", force, "write into a folder that is there");
  if (const auto code = apps::parse_arguments(app, argc, argv)) return *code;
  if (quiet) log::configure({.level = log::Level::kWarning});
  if (*convert) {
    systems::convert_model(folder, out, force);
    return 0;
  }
  const Json info = systems::describe_model(folder);
  std::fputs(as_json ? to_json_line(info).append("\n").c_str() : systems::model_text(info).c_str(),
             stdout);
  if (!info["problems"].empty()) return static_cast<int>(ExitCode::kConfig);
  return info["missing"].empty() ? 0 : static_cast<int>(ExitCode::kData);
}

}  // namespace

int main(int argc, char** argv) try {
  return run_program(argc, argv);
} catch (...) {  // whatever it is becomes a message and a documented exit code
  return tutti::report_and_exit_code();
}
