#include "tutti/trainer/limits.h"

#include <fmt/format.h>

#include <vector>

#include "tutti/core/text.h"

namespace tutti::trainer {

std::string reached_limits(const LoopSettings& settings, const Trained& trained) {
  std::vector<std::string> reached, keys;
  const auto compare = [&](const char* key, std::int64_t limit, std::int64_t done) {
    if (limit < 0 || done < limit) return;
    keys.emplace_back(key);
    reached.push_back(done > limit
                          ? fmt::format("{} is {}, but {} are trained already", key, limit, done)
                          : fmt::format("{} is {}, and {} are trained", key, limit, done));
  };
  compare("trainer.max_epochs", settings.max_epochs, trained.epoch);
  compare("trainer.max_steps", settings.max_steps, trained.step);
  if (settings.max_time.seconds && trained.seconds >= *settings.max_time.seconds) {
    keys.emplace_back("trainer.max_time");
    reached.emplace_back("trainer.max_time is used up");
  }
  if (keys.empty()) return "";
  return fmt::format("{}; raise {} to go on", join(reached, ", "), join(keys, " and "));
}

}  // namespace tutti::trainer
