#include "tutti/trainer/recording.h"

namespace tutti::trainer {

bool set_recording(TrainableModel& model, bool on) {
  auto* whole = dynamic_cast<ModuleModel*>(&model);
  if (!whole) return false;
  bool found = false;
  for (const auto& module : whole->module()->modules())
    if (auto* recordable = dynamic_cast<Recordable*>(module.get());
        recordable && recordable->can_record()) {
      recordable->set_recording(on);
      found = true;
    }
  return found;
}

}  // namespace tutti::trainer
