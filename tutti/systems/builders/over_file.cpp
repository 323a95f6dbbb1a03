#include "tutti/systems/builders/over_file.h"

#include <fcntl.h>
#include <unistd.h>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/progress.h"

namespace tutti::systems {

CommandResult run_over_file(const std::string& what, const std::filesystem::path& file,
                            const std::vector<std::string>& argv) {
  constexpr std::uint64_t kMiB = 1 << 20;
  const UniqueFd opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!opened) throw_errno("cannot open " + file.string(), errno);
  const std::uint64_t size = std::filesystem::file_size(file);
  // The program and its children share our position in the file.
  const ProgressWatch watch(what + ", MiB", [&] {
    const auto position = static_cast<std::uint64_t>(::lseek(opened.get(), 0, SEEK_CUR));
    return ProgressWatch::Seen{position / kMiB, (size + kMiB - 1) / kMiB};
  });
  return run_command({.argv = argv, .stdin_fd = opened.get()});
}

}  // namespace tutti::systems
