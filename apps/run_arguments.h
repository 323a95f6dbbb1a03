// The arguments of `tutti run` and of each stage. The front door reads them too, so that a slip is refused at once and
// not after libtorch was loaded.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/systems/stage.h"
#include "tutti/systems/transcribe/transcribe.h"

namespace CLI {
class App;
}

namespace tutti::apps {

struct RunArguments {
  systems::ContextRequest request;
  std::vector<std::string> stages;
  std::vector<std::filesystem::path> files;  // of --config
  int first = 0;                             // by number; 0: not given
  int last = 0;
  bool dry_run = false;
  bool quiet = false;
  systems::TranscribeRequest transcribe;  // infer --model
  bool as_json = false, as_srt = false, as_vtt = false, as_ctm = false;
};

// `name` is "run" or a stage's name; `out` must outlive the parse.
void add_run_options(CLI::App& app, const std::string& name, RunArguments& out);

}  // namespace tutti::apps
