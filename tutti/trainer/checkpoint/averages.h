// Means of the best weights: METRIC.ave_Nbest.{safetensors,pth}. METRIC.ave_Nbest.json says of which
// files of best.json, and the checksum: so an average that training has left behind is known.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/trainer/checkpoint/best_lists.h"

namespace tutti::trainer {

struct AverageOf {
  std::string list;  // its name in best.json
  int most = 0;      // so many of it; 0: all
};

// Those of a list that the average is of.
std::vector<BestEntry> taken(const AverageOf& wanted, std::vector<BestEntry> list);

// Weights that are damaged are left out, with a warning. Returns the file without its ending; empty
// if the list is. Throws DataError when none can be used, IoError.
std::filesystem::path write_average(const std::filesystem::path& folder, const AverageOf& wanted,
                                    const std::vector<BestEntry>& list);

// The averages of a folder that were made of other weights than best.json lists by now, or that are
// damaged, are made anew. Training may have been killed, or run on meanwhile. Those of programs that
// noted nothing stay as they are.
void renew_averages(const std::filesystem::path& folder);

}  // namespace tutti::trainer
