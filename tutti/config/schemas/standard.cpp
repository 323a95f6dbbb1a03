#include "tutti/config/schemas/standard.h"

#include "tutti/config/schemas/callbacks.h"
#include "tutti/config/schemas/data.h"
#include "tutti/config/schemas/files.h"
#include "tutti/config/schemas/optim.h"
#include "tutti/config/schemas/schedules.h"

namespace tutti::config {

Catalogue standard_catalogue() {
  Catalogue catalogue;
  add_optim_components(catalogue);
  add_schedule_components(catalogue);
  add_callback_components(catalogue);
  add_data_components(catalogue);
  add_speech_components(catalogue);
  return catalogue;
}

}  // namespace tutti::config
