// `optimizer:` and `scheduler:` settings. Names and defaults are torch's and ESPnet2's, formulas in
// docs/config-reference.md; the code is in tutti/trainer/optim.
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

struct ConstantLrSettings {};
Schema<ConstantLrSettings> constant_lr_schema();

struct WarmupLrSettings {
  double warmup_steps = 25000;
};
Schema<WarmupLrSettings> warmup_lr_schema();

struct PiecewiseLinearWarmupLrSettings {
  std::vector<double> warmup_steps_list = {0, 25000};
  std::vector<double> warmup_lr_list = {0, 1e-3};
};
Schema<PiecewiseLinearWarmupLrSettings> piecewise_linear_warmup_lr_schema();

struct NoamLrSettings {
  double model_size = 320;
  double warmup_steps = 25000;
};
Schema<NoamLrSettings> noam_lr_schema();

struct CosineWarmupLrSettings {
  double warmup_steps = 25000;
  double total_steps = 0;
  double min_lr = 0;
};
Schema<CosineWarmupLrSettings> cosine_warmup_lr_schema();

struct PlateauLrSettings {
  std::string mode = "min";
  double factor = 0.1;
  int patience = 10;
  double threshold = 1e-4;
  int cooldown = 0;
  double min_lr = 0;
};
Schema<PlateauLrSettings> plateau_lr_schema();

void add_optim_components(Catalogue& catalogue);

}  // namespace tutti::config
