// What people see beside log lines: a line that is drawn over, and paths that read well.
//
//   log::status("epoch 3, step 120/3000, loss 1.23");   // nothing where stderr goes to a file
//   log::status("");                                    // at the end
//
// Thread-safe; never throws.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tutti {
namespace log {

// A line below the log lines, drawn over by the next one. Only on a terminal; empty text removes it.
void status(std::string_view text) noexcept;
// The width of the terminal that shows stderr; 0: none does.
int terminal_columns() noexcept;

// A process that passes our stderr on sets these for us: where stderr is what it names, log lines
// begin with kOwnLine (they say by themselves which rank they are of; rank 0 speaks for the run and
// says nothing), and status lines reach a terminal of so many columns.
inline constexpr const char* kPassedOnVariable = "TUTTI_STDERR_PASSED_ON";  // file_name()
inline constexpr const char* kTerminalVariable = "TUTTI_TERMINAL";          // columns
inline constexpr char kOwnLine = '\x1e';
// What a descriptor is open on, the same in every process that holds it.
std::string file_name(int fd) noexcept;

}  // namespace log

// Without `//` and `./`, and from here if it is below the current folder.
std::string shown_path(const std::filesystem::path& path);

}  // namespace tutti
