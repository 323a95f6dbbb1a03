#include "tutti/trainer/callback_settings.h"

#include <fmt/format.h>

#include "tutti/config/schemas/callbacks.h"

namespace tutti::trainer {

void check_callback(const config::Component& component, const config::Node& callback,
                    const LoopSettings& settings, config::Problems& problems) {
  if (component.name == config::model_checkpoint_schema().info().name &&
      !settings.enable_checkpointing)
    problems.add(callback, "trainer.enable_checkpointing is false", "remove one of the two");
  if (component.name == config::accumulation_schema().info().name &&
      settings.accumulate_grad_batches.from_epoch != config::Accumulation().from_epoch)
    problems.add(callback, "trainer.accumulate_grad_batches says the same", "keep one of them");
  if (component.name != config::swa_schema().info().name) return;
  config::Problems told;  // where the block is checked
  const config::Amount start = config::swa_schema().parse(callback, told).swa_epoch_start;
  const config::Node at = callback["swa_epoch_start"];
  if (start.is_fraction && settings.max_epochs < 0)
    problems.add(at.is_null() ? callback : at, "a part of the epochs needs trainer.max_epochs",
                 "set max_epochs, or give swa_epoch_start: EPOCH");
  if (!start.is_fraction && settings.max_epochs >= 0 &&
      start.value > static_cast<double>(settings.max_epochs))
    problems.warn(at,
                  fmt::format("got {:g}, but training ends after epoch {}: nothing is averaged",
                              start.value, settings.max_epochs),
                  "give an earlier epoch, or a part of them (0.8)");
}

void check_averages(const config::Node& callbacks, const config::Catalogue& catalogue,
                    config::Problems& problems) {
  std::string first;
  for (const config::Node& callback : callbacks.elements()) {
    const config::Node target = callback["_target_"];
    const auto* found = target.is_scalar() ? catalogue.find("callback", target.raw()) : nullptr;
    if (!found || (found->name != config::swa_schema().info().name &&
                   found->name != config::ema_schema().info().name))
      continue;
    if (!first.empty())
      problems.add(callback,
                   fmt::format("got a second average of the weights, {} after {}; only one can be "
                               "validated and kept",
                               target.raw(), first),
                   "keep one of them");
    first = target.raw();
  }
}

}  // namespace tutti::trainer
