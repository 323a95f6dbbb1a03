// The Python that tests compare with (cmake/TuttiBuild.cmake finds it).
#pragma once

#include "tutti/core/subprocess.h"

namespace tutti::trainer::toy {

// Whether it can make and read torch's files; CI installs that.
inline bool python_has_torch() {
  return run_command(
             {.argv = {TUTTI_PYTHON, "-c", "import torch"}, .timeout = std::chrono::seconds(60)})
      .ok();
}

}  // namespace tutti::trainer::toy
