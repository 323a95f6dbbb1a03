// A program that reads one large file, with a bar of how far it is.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/core/subprocess.h"

namespace tutti::systems {

// The file is the program's standard input. `what` names the bar. Throws IoError when the file
// cannot be opened.
CommandResult run_over_file(const std::string& what, const std::filesystem::path& file,
                            const std::vector<std::string>& argv);

}  // namespace tutti::systems
