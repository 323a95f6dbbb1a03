// exp/<tag>/report.html: curves, error rates and the config of one experiment, in one file that
// needs no other and no network.
#pragma once

#include <filesystem>
#include <string>

#include "tutti/config/node.h"

namespace tutti::systems {

struct ReportInputs {
  std::filesystem::path exp_dir;        // metrics.jsonl is read from here, where training ran
  std::filesystem::path inference_dir;  // metrics.json and metrics.html, where measure ran
  config::Node training;                // shown as YAML; may be missing
};

// What is not there yet is left out. Returns the path of the page.
std::filesystem::path write_report(const ReportInputs& inputs);

}  // namespace tutti::systems
