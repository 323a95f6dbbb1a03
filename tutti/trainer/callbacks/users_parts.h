// Callbacks and loggers of plugins: what their code throws is told with their name (exit 3).
#pragma once

#include <memory>
#include <string>

#include "tutti/trainer/callbacks/callback.h"
#include "tutti/trainer/loggers/logger.h"

namespace tutti::trainer {

// `who`: "callback stop_below"
std::unique_ptr<Callback> guarded(std::string who, std::unique_ptr<Callback> callback);
std::unique_ptr<Logger> guarded(std::string who, std::unique_ptr<Logger> logger);

}  // namespace tutti::trainer
