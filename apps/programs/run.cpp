// tutti run: stages by name or number; and `tutti STAGE --config F`, one stage by its own name.
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "apps/arguments.h"
#include "apps/command.h"
#include "apps/run_arguments.h"
#include "tutti/config/merge.h"
#include "tutti/core/error.h"
#include "tutti/core/held_signals.h"
#include "tutti/core/log.h"
#include "tutti/parallel/worker/worker.h"
#include "tutti/systems/stage.h"
#include "tutti/systems/transcribe/transcribe.h"
#include "tutti/trainer/cpu/processor.h"

namespace {

using namespace tutti;

std::string stage_table() {
  std::string text = "stages:\n";
  for (const auto& stage : systems::all_stages())
    text += fmt::format("  {:2} {:<18}{}\n", stage.number, stage.name, stage.summary);
  return text;
}

// Decoding and scoring learn from the training config which experiment is meant.
const char* example_files(const std::string& stage) {
  if (stage == "infer")
    return "conf/inference.yaml --training_config conf/training.yaml\n"
           "tutti infer --model exp/training/model_pack talk.wav --srt";
  if (stage == "measure") return "conf/metrics.yaml --training_config conf/training.yaml";
  return stage == "demo" ? "conf/demo.yaml" : "conf/training.yaml";
}

// The config files among the arguments, found before parsing: plugins they name add stages that
// `--help` shows and `--stages` may name.
std::vector<std::filesystem::path> config_files(int argc, char** argv) {
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i) {
    const std::filesystem::path word = argv[i];
    const bool is_yaml = word.extension() == ".yaml" || word.extension() == ".yml";
    if (is_yaml && std::filesystem::is_regular_file(word)) files.push_back(word);
  }
  return files;
}

// `name` is "run" or a stage's name: "tutti train" reaches this program as argv[0] "tutti train".
int run_program(const std::string& name, int argc, char** argv) {
  const systems::Extensions extensions = systems::load_extensions(config_files(argc, argv));
  CLI::App app{name == "run" ? "Run stages of a recipe" : "Run the stage " + name, "tutti " + name};
  app.footer(
      name == "run"
          ? stage_table() +
                apps::example(
                    "tutti run --stages all --training_config conf/training.yaml "
                    "--inference_config conf/inference.yaml --metrics_config conf/metrics.yaml")
          : "Overrides look like trainer.max_epochs=5, inference:model.device=cuda or ~init.\n" +
                apps::example(fmt::format("tutti {} {}", name, example_files(name))));
  apps::RunArguments arguments;
  apps::add_run_options(app, name, arguments);
  if (const auto code = apps::parse_arguments(app, argc, argv)) return *code;
  auto& [request, stages, files, first, last, dry_run, quiet, files_request, as_json, as_srt,
         as_vtt, as_ctm] = arguments;
  // `--config a.yaml key=value`: an option that takes several files also takes what follows them.
  for (auto* list :
       {&files, &request.training, &request.inference, &request.metrics, &request.demo})
    std::erase_if(*list, [&](const std::filesystem::path& word) {
      if (!config::is_override(word.string())) return false;
      request.overrides.push_back(word.string());
      return true;
    });
  std::erase_if(request.continue_with, [&](const std::string& word) {
    if (!config::is_override(word)) return false;
    request.overrides.push_back(word);
    return true;
  });
  // `tutti train conf/training.yaml`, `tutti run --stages train conf/training.yaml`.
  const auto take_file = [&](const std::string& word) {
    if (config::is_override(word) || !(word.ends_with(".yaml") || word.ends_with(".yml")))
      return false;
    files.emplace_back(word);
    return true;
  };
  std::erase_if(stages, take_file);
  if (files_request.model.empty()) std::erase_if(request.overrides, take_file);
  if (quiet) log::configure({.level = log::Level::kWarning});
  request.quiet = quiet;

  if (!files_request.model.empty()) {
    using Format = systems::TranscriptFormat;
    files_request.format = as_json  ? Format::kJson
                           : as_srt ? Format::kSrt
                           : as_vtt ? Format::kVtt
                           : as_ctm ? Format::kCtm
                                    : Format::kText;
    for (const std::string& word : request.overrides)
      (config::is_override(word) && !std::filesystem::exists(word) ? files_request.options
                                                                   : files_request.inputs)
          .push_back(word);
    const bool whole = systems::transcribe(files_request) == 0;
    return static_cast<int>(whole ? ExitCode::kDone : ExitCode::kItemsFailed);
  }

  std::vector<systems::Stage> selected;
  if (name != "run")
    selected = systems::select_stages(std::vector<std::string>{name});
  else if (!stages.empty())
    selected = systems::select_stages(stages);
  else if (first > 0)
    selected = systems::select_stages(first, last > 0 ? last : first);
  else
    throw ConfigError("no stage given", "use --stages NAME... or --stage N --stop_stage M");
  systems::assign_config(selected, files, request);

  systems::StageContext context = systems::load_context(request, extensions);
  context.command = {"tutti", name};
  context.command.insert(context.command.end(), argv + 1, argv + argc);
  const bool whole = systems::run_stages(selected, context, dry_run);
  return static_cast<int>(whole ? ExitCode::kDone : ExitCode::kItemsFailed);
}

}  // namespace

int main(int argc, char** argv) try {
  tutti::trainer::choose_matrix_kernels();
  const std::string invoked = argv[0];  // "tutti train", or a path when started directly
  const auto space = invoked.rfind(' ');
  const std::string name = space == std::string::npos ? "run" : invoked.substr(space + 1);
  // Training asks for those that came while it was loaded; a worker's death of a signal is its driver's to see.
  const bool is_worker = argc > 1 && std::string_view(argv[1]) == "worker";
  if (name != "train" && !is_worker) tutti::end_on_stop_signals();
  if (name != "train") tutti::release_stop_signals();
  if (const auto code = tutti::parallel::worker_main_if_requested(argc, argv)) return *code;
  if (name == "config") return tutti::apps::run_config(argc, argv);  // of files with plugins
  return run_program(name, argc, argv);
} catch (...) {  // whatever it is becomes a message and a documented exit code
  return tutti::report_and_exit_code();
}
