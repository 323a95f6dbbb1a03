#include "tutti/trainer/callback_settings.h"

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
}

}  // namespace tutti::trainer
