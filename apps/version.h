// What this program was built from; found out by the build, so that nothing needs to be linked or asked.
#pragma once

#include <string>

namespace tutti::apps {

struct BuildInfo {
  const char* tutti;  // "0.1.0"
  const char*
      commit;  // "a7ff866d0f12", with "-dirty" for changes that are not committed; "unknown" outside git
  const char* torch;  // "1.13.1"; "none": built without it
  const char* cuda;   // "12.4"; "none": CPU only
};
const BuildInfo& build_info();

// "tutti 0.1.0 (a7ff866d0f12), torch 1.13.1, CUDA none"
std::string version_line();

}  // namespace tutti::apps
