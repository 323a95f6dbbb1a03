// Differences between libtorch versions are guarded with this; 1.13, 2.6 and 2.11 are supported.
#pragma once

#include <torch/version.h>

#define TUTTI_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) ||        \
   (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))
