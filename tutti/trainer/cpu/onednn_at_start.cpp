// As tutti/core/tiles_at_start.cpp: programs with torch take it out of the library (cmake/TuttiTorch.cmake).
#include <ATen/Context.h>

#include "tutti/core/tiles.h"

extern "C" const bool tutti_keeps_to_onednn_limit;
const bool tutti_keeps_to_onednn_limit = [] {
  if (tutti::onednn_limit_excludes_bf16()) at::globalContext().setUserEnabledMkldnn(false);
  return true;
}();
