// Whether a test that needs a real Slurm can run here.
#pragma once

#include <algorithm>
#include <string>

#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"

namespace tutti {

// Empty: there is a Slurm with at least `needed` usable nodes. Else why not, for GTEST_SKIP.
inline std::string why_no_slurm(int needed) {
  const auto nodes = run_command({.argv = {"sinfo", "-h", "-o", "%D", "-t", "idle,mix,alloc"},
                                  .timeout = std::chrono::seconds(20)});
  if (!nodes.ok()) return "no Slurm here: " + nodes.describe();
  int count = 0;
  for (const auto& word : split_words(nodes.out)) count = std::max(count, std::stoi(word));
  if (count >= needed) return "";
  return "needs " + std::to_string(needed) + " nodes, sinfo shows " + std::to_string(count);
}

}  // namespace tutti
