// SpecAugment in one pass: time warp, then stripes of zeros along frequency and time.
#pragma once

#include <cstdint>

#include "tutti/speech/kernels/kernels.h"

namespace tutti::speech::cuda {

// Of one utterance after the other; integers of 64 bits in device memory.
struct Stripes {
  const std::int64_t* starts = nullptr;  // (batch, count)
  const std::int64_t* widths = nullptr;
  int count = 0;
};

struct SpecAugment {
  std::int64_t batch = 0, frames = 0, bins = 0;
  const std::int64_t* lengths = nullptr;  // (batch); null: no warp
  const std::int64_t* centers = nullptr;  // 0: this utterance is not warped
  const std::int64_t* warped = nullptr;
  Stripes across_time, across_bins;
};

// y from x, both float (batch, frames, bins); see frontend/spec_augment.h for the warp.
void spec_augment(const SpecAugment& call, const float* x, float* y, Stream stream);

}  // namespace tutti::speech::cuda
