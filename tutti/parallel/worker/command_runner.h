// Any command as an item: what `tutti map` runs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/parallel/wire/job_spec.h"

namespace tutti::parallel {

// An item's command was ended by SIGTERM. Schedulers send it to every process of a job that has to
// go, so the worker looks whether it is meant too: then the item has not failed, it goes elsewhere.
class CommandTerminated : public TaskError {
 public:
  using TaskError::TaskError;
};

// The job that runs `command` (command_template.h) on each line of `items_file` (item_file.h), which
// the workers must be able to read, or on the values in `items`, which travel with the job; neither:
// item i is the number i. Its results are the commands' outputs without one last newline, as
// bytes_to_json has them.
JobSpec command_job(const std::vector<std::string>& command,
                    const std::filesystem::path& items_file, const Json& items = nullptr);

// Makes the command provider and runner known to this program's workers. Idempotent.
void register_command_runner();

}  // namespace tutti::parallel
