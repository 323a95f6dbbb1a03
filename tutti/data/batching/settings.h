// The `dataloader:` block: both spellings of ESPnet3 and ours, read into one struct.
//
//   dataloader:
//     collate_fn: {int_pad_value: -1}
//     train:
//       total_shards: 16                     # optional: shard rotation
//       dist_world_size: 16
//       iter_factory:                        # ESPnet's spelling
//         _target_: espnet2.iterators.sequence_iter_factory.SequenceIterFactory
//         shuffle: true
//         batches: {type: numel, batch_bins: 4000000, shape_files: [...]}
//     valid:
//       batches: {batch_bins: 4000000, shape_files: [...]}   # ours: no factory, type bucketed
//
// With `iter_factory: null` and no `batches`, a mode has the keys of torch's DataLoader
// (batch_size, shuffle, num_workers, drop_last, ...). Unknown keys are problems with a suggestion.
#pragma once

#include <optional>

#include "tutti/config/schema.h"
#include "tutti/data/batching/plan.h"
#include "tutti/data/loader.h"

namespace tutti::data {

// One mode (train or valid), whatever its spelling.
struct ModeSettings {
  PlanSettings plan;      // world and the run's seed are filled in by the caller
  LoaderSettings loader;  // collate comes from the block's collate_fn
  bool pin_memory = false;
};

struct DataloaderSettings {
  ModeSettings train;
  ModeSettings valid;
};

// The number of ranks as the config file says it.
struct RankCount {
  int num_nodes = 1;
  int num_device = 1;
};

// Reads and checks; reports every problem. `ranks` turns on the sharding rules at config time.
DataloaderSettings parse_dataloader(const config::Node& dataloader,
                                    const std::optional<RankCount>& ranks,
                                    config::Problems& problems);
// The check alone, for `tutti config check`.
void check_dataloader_block(const config::Node& dataloader, const std::optional<RankCount>& ranks,
                            config::Problems& problems);

// For the reference in docs/.
std::vector<config::SchemaInfo> dataloader_reference();

}  // namespace tutti::data
