// Samples to one padded batch, as ESPnet's CommonCollateFn: each field is stacked and padded along
// its first dimension, with `<field>_lengths` beside it.
//
//   Batch batch = collate(std::move(samples), {.int_pad_value = -1});
//   batch.arrays.at("speech");           // float32 [B, T]
//   batch.arrays.at("speech_lengths");   // int64 [B]
//   batch.arrays.at("text");             // int64 [B, L], padded with -1
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tutti/config/schema.h"
#include "tutti/data/array.h"
#include "tutti/data/batching/plan.h"
#include "tutti/data/dataset.h"

namespace tutti::data {

// The `collate_fn:` block.
struct CollateSettings {
  double float_pad_value = 0.0;
  std::int64_t int_pad_value = -1;
};
config::Schema<CollateSettings> collate_schema();

struct Batch {
  std::map<std::string, Array> arrays;
  std::vector<std::string> uids;   // row -> utterance
  std::vector<std::string> texts;  // as written, row by row
  PlanPosition position;
  // Utterances in it: 0 for an empty batch, which has no arrays. Such a rank still takes part in
  // the step's collectives, with weight 0.
  std::int64_t weight() const noexcept { return static_cast<std::int64_t>(uids.size()); }
};

// Throws DataError, naming the utterance, when a field is missing or inner dimensions or types
// differ.
Batch collate(std::vector<Sample> samples, const CollateSettings& settings,
              const Allocator& allocate = allocate_plain);

}  // namespace tutti::data
