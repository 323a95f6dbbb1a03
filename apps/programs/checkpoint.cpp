// tutti checkpoint: look at weights, and make one file of a checkpoint that any number of ranks
// wrote.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <string>

#include "apps/arguments.h"
#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/trainer/checkpoint/weights.h"

namespace {

using namespace tutti;

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::vector<std::string> sizes;
  for (const auto size : shape) sizes.push_back(std::to_string(size));
  return "[" + join(sizes, ", ") + "]";
}

void show(const std::filesystem::path& path, bool trained, bool as_json) {
  const auto source = trainer::open_weights(path, trained);
  std::int64_t numel = 0;
  std::uint64_t num_bytes = 0;
  Json tensors = Json::array();
  for (const auto& [name, spec] : source->specs()) {
    numel += spec.numel();
    num_bytes += spec.num_bytes();
    const std::string type = trainer::safetensors_type(spec.type);
    if (as_json)
      tensors.push_back({{"name", name}, {"type", type}, {"shape", spec.shape}});
    else
      std::printf("%-8s %-20s %s\n", type.c_str(), shape_text(spec.shape).c_str(), name.c_str());
  }
  if (as_json)
    std::puts(Json{{"source", source->describe()},
                   {"elements", numel},
                   {"bytes", num_bytes},
                   {"tensors", tensors}}
                  .dump()
                  .c_str());
  else
    std::printf("%s: %zu tensors, %lld elements, %.1f MB\n", source->describe().c_str(),
                source->specs().size(), static_cast<long long>(numel),
                static_cast<double>(num_bytes) / 1e6);
}

void write(const std::filesystem::path& from, const std::filesystem::path& to, bool trained,
           bool force) {
  if (std::filesystem::exists(to) && !force)
    throw ConfigError(to.string() + " is there already", "give another name, or --force");
  const auto source = trainer::open_weights(from, trained);
  trainer::write_weights(*source, to);
  log::info("wrote {}: {} tensors from a {}", to.string(), source->specs().size(),
            source->describe());
}

int run_program(int argc, char** argv) {
  CLI::App app{"Look at weights, and make one file of a checkpoint", "tutti checkpoint"};
  app.footer(
      apps::example("tutti checkpoint show exp/checkpoints\n"
                    "tutti checkpoint merge exp/checkpoints model.safetensors"));
  app.require_subcommand(1);
  std::filesystem::path from, to;
  bool trained = false, force = false, as_json = false, quiet = false;
  auto* show_command = app.add_subcommand("show", "tensors of a checkpoint or a weights file");
  auto* merge = app.add_subcommand("merge", "a checkpoint's weights as one file");
  auto* convert = app.add_subcommand("convert", "a weights file in the other format");
  for (auto* command : {show_command, merge}) {
    command->add_option("checkpoint", from, "step folder, folder of checkpoints, or weights file")
        ->required();
    command->add_flag(
        "--trained", trained,
        "the weights training goes on with, where a checkpoint delivers their average");
  }
  convert->add_option("input", from, ".safetensors or .pth")->required();
  for (auto* command : {merge, convert}) {
    command->add_option("output", to, ".safetensors or .pth")->required();
    command->add_flag("--force", force, "replace the output");
  }
  show_command->add_flag("--json", as_json, "one JSON object");
  for (auto* command : {show_command, merge, convert})
    command->add_flag("--quiet", quiet, "warnings and errors only");
  if (const auto code = apps::parse_arguments(app, argc, argv)) return *code;
  if (quiet) log::configure({.level = log::Level::kWarning});
  if (show_command->parsed())
    show(from, trained, as_json);
  else
    write(from, to, trained, force);
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  return run_program(argc, argv);
} catch (...) {  // whatever it is becomes a message and a documented exit code
  return tutti::report_and_exit_code();
}
