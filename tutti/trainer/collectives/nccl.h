// NCCL on one device; see collectives.h.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "tutti/trainer/collectives/collectives.h"

namespace tutti::trainer {

// Throws ConfigError where there is no NCCL or no CUDA, CommError when a rank is missing.
std::unique_ptr<Collectives> make_nccl_collectives(KeyValue& store, int rank, int world_size,
                                                   at::Device device, Control& control);

}  // namespace tutti::trainer
