// `optimizer:` settings. Names and defaults are torch's; the code is in
// tutti/trainer/optim.
#pragma once

#include <vector>

#include "tutti/config/registry.h"

namespace tutti::config {

struct AdamSettings {
  double lr = 1e-3;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
};
Schema<AdamSettings> adam_schema();

struct AdamWSettings {
  double lr = 1e-3;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.01;
  bool amsgrad = false;
};
Schema<AdamWSettings> adamw_schema();

struct SgdSettings {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
};
Schema<SgdSettings> sgd_schema();

struct RAdamSettings {
  double lr = 1e-3;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
};
Schema<RAdamSettings> radam_schema();

struct NAdamSettings {
  double lr = 2e-3;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum_decay = 4e-3;
};
Schema<NAdamSettings> nadam_schema();

struct AdagradSettings {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
};
Schema<AdagradSettings> adagrad_schema();

struct AdadeltaSettings {
  double lr = 1.0;
  double rho = 0.9;
  double eps = 1e-6;
  double weight_decay = 0;
};
Schema<AdadeltaSettings> adadelta_schema();

struct RmspropSettings {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false;
};
Schema<RmspropSettings> rmsprop_schema();

void add_optim_components(Catalogue& catalogue);

}  // namespace tutti::config
