#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "apps/arguments.h"
#include "apps/command.h"
#include "apps/run_arguments.h"
#include "apps/version.h"
#include "tutti/core/error.h"
#include "tutti/core/held_signals.h"
#include "tutti/core/program.h"
#include "tutti/core/text.h"

namespace {

using tutti::apps::Command;

constexpr Command kCommands[] = {
    {"config", "check or show config files", tutti::apps::run_config},
    {"doctor", "what this machine has", tutti::apps::run_doctor},
    {"launch", "start a program as several ranks", tutti::apps::run_launch},
    {"pack", "pack a corpus into one file", tutti::apps::run_pack},
    {"parallel", "show the job scripts a config would submit", tutti::apps::run_parallel},
    {"map", "run a command per item on any backend", tutti::apps::run_map},
    {"status", "how a run in a folder is doing", tutti::apps::run_status},
    {"wait", "wait for the run in a folder", tutti::apps::run_wait},
    {"gather", "collect the results of a folder", tutti::apps::run_gather},
    {"cancel", "stop the run in a folder", tutti::apps::run_cancel},
    {"worker", "be a worker of a run (started by backends)", tutti::apps::run_worker},
    {"run", "run stages of a recipe, by name or number", nullptr},
    {"create_dataset", "stage 1: build the corpus", nullptr},
    {"validate_dataset", "stage 2: check every file and transcript", nullptr},
    {"train_tokenizer", "stage 3: make the token list", nullptr},
    {"collect_stats", "stage 4: shapes and statistics, on the parallel layer", nullptr},
    {"train", "stage 5: train a model on one or many ranks", nullptr},
    {"infer", "stage 6: decode test sets on the parallel layer", nullptr},
    {"measure", "stage 7: error rates", nullptr},
    {"pack_model", "stage 8: one folder with everything decoding needs", nullptr},
    {"demo", "stage 9: a page to talk to", nullptr},
    {"checkpoint", "show, merge and convert weights", nullptr, "tutti-checkpoint"},
    {"model", "show a trained model, or make a pack of it", nullptr, "tutti-model"},
};

void print_help() {
  std::puts("tutti: scale speech work by config\n\nusage: tutti COMMAND [ARGS]\n\ncommands:");
  for (const Command& command : kCommands)
    std::printf("  %-16s %s\n", command.name, command.summary);
  std::puts("\n`tutti COMMAND --help` tells more, `tutti --version` what this is.");
}

// Words that other toolkits use for a command.
std::string foreign_name(const std::string& name) {
  static const std::pair<const char*, const char*> kNames[] = {
      {"decode", "infer"},       {"inference", "infer"}, {"transcribe", "infer"},
      {"score", "measure"},      {"eval", "measure"},    {"evaluate", "measure"},
      {"test", "measure"},       {"fit", "train"},       {"training", "train"},
      {"torchrun", "launch"},    {"submit", "map"},      {"prepare", "create_dataset"},
      {"check", "config check"}, {"show", "config show"}};
  for (const auto& [theirs, ours] : kNames)
    if (name == theirs) return ours;
  return {};
}

constexpr std::string_view kStages = "tutti-run";

// A slip is refused here, in milliseconds; the stages' program takes a second to load libtorch.
void check_stage_arguments(const std::string& name, int argc, char** argv) {
  CLI::App app{"", "tutti " + name};
  tutti::apps::RunArguments arguments;
  tutti::apps::add_run_options(app, name, arguments);
  tutti::apps::check_arguments(app, argc, argv);
}

// Replaces this process by the sibling that knows the command; argv[0] tells it which it was.
[[noreturn]] void exec_sibling(const char* name, char** argv) {
  const auto program = tutti::own_program().parent_path() / name;
  ::execv(program.c_str(), argv);
  tutti::throw_errno("cannot run " + program.string(), errno, "build it with ./run build");
}

}  // namespace

int main(int argc, char** argv) try {
  static char help_flag[] = "--help";
  if (argc > 2 && std::string_view(argv[1]) == "help") {
    // `help config check` is `config check --help`.
    std::rotate(argv + 1, argv + 2, argv + argc);
    argv[argc - 1] = help_flag;
  }
  const std::string name = argc > 1 ? argv[1] : "--help";
  if (name == "--help" || name == "-h" || name == "help") return print_help(), 0;
  if (name == "--version" || name == "-V" || name == "version")
    return std::puts(tutti::apps::version_line().c_str()), 0;
  std::vector<std::string> names;
  for (const Command& command : kCommands) {
    names.emplace_back(command.name);
    if (name != command.name) continue;
    std::string own_name = "tutti " + name;
    argv[1] = own_name.data();
    if (command.run == nullptr) {
      if (command.sibling == kStages) {
        tutti::hold_stop_signals();
        check_stage_arguments(name, argc - 1, argv + 1);
      }
      exec_sibling(command.sibling, argv + 1);
    }
    return command.run(argc - 1, argv + 1);
  }
  std::string guess = foreign_name(name);
  if (guess.empty()) guess = tutti::closest_match(name, names);
  throw tutti::ConfigError("unknown command '" + name + "'",
                           guess.empty() ? "see tutti --help" : "did you mean '" + guess + "'?");
} catch (...) {
  return tutti::report_and_exit_code();
}
