# cmake -DSOURCE=... -DOUTPUT=... -DVERSION=... -DTORCH=... -DCUDA=... -P TuttiVersion.cmake
# Writes version.cpp for apps/version.h, at build time because the commit changes between builds; only when it differs.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=12 --match NONE
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed OR commit STREQUAL "")
  set(commit unknown)
endif()
set(text "// Made by cmake/TuttiVersion.cmake.
#include \"apps/version.h\"

namespace tutti::apps {

const BuildInfo& build_info() {
  static const BuildInfo info{\"${VERSION}\", \"${commit}\", \"${TORCH}\", \"${CUDA}\"};
  return info;
}

std::string version_line() {
  const BuildInfo& info = build_info();
  return std::string(\"tutti \") + info.tutti + \" (\" + info.commit + \"), torch \" + info.torch + \", CUDA \" +
         info.cuda;
}

}  // namespace tutti::apps
")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT old STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
