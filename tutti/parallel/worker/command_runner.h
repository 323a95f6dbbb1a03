// Any command as an item: what `tutti map` runs. `{}` stands for the item, `{index}` for its
// number.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/parallel/wire/job_spec.h"

namespace tutti::parallel {

// One line per item; no items are lost to a missing last newline. Throws IoError.
std::vector<std::string> read_items(const std::filesystem::path& path);

// The command for one item. A single word with white space in it is a shell line: there the item is
// quoted for the shell.
std::vector<std::string> expand_command(const std::vector<std::string>& command,
                                        const std::string& item, std::uint64_t index);

// An item's command was ended by SIGTERM. Schedulers send it to every process of a job that has to
// go, so the worker looks whether it is meant too: then the item has not failed, it goes elsewhere.
class CommandTerminated : public TaskError {
 public:
  using TaskError::TaskError;
};

// `items_file` must be readable by the workers; empty: item i is the number i.
JobSpec command_job(const std::vector<std::string>& command,
                    const std::filesystem::path& items_file);

// Makes the command provider and runner known to this program's workers. Idempotent.
void register_command_runner();

}  // namespace tutti::parallel
