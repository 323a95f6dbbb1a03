// `scheduler:` settings. Names and defaults are torch's and ESPnet2's; the code is in
// tutti/trainer/optim/schedule.cpp. They count optimizer steps, or epochs with scheduler_interval:
// epoch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/config/registry.h"

namespace tutti::config {

struct ConstantSettings {};
Schema<ConstantSettings> constant_schema();

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

struct TriStageLrSettings {
  double max_steps = 25000;
  double warmup_ratio = 0.1;
  double hold_ratio = 0.4;
  double decay_ratio = 0.5;
  double init_lr_scale = 0.01;
  double final_lr_scale = 0.01;
};
Schema<TriStageLrSettings> tri_stage_lr_schema();

struct PlateauLrSettings {
  std::string mode = "min";
  double factor = 0.1;
  int patience = 10;
  double threshold = 1e-4;
  std::string threshold_mode = "rel";
  int cooldown = 0;
  double min_lr = 0;
  double eps = 1e-8;
};
Schema<PlateauLrSettings> plateau_lr_schema();

struct StepLrSettings {
  double step_size = 0;
  double gamma = 0.1;
};
Schema<StepLrSettings> step_lr_schema();

struct MultiStepLrSettings {
  std::vector<double> milestones;
  double gamma = 0.1;
};
Schema<MultiStepLrSettings> multi_step_lr_schema();

struct ExponentialLrSettings {
  double gamma = 0;
};
Schema<ExponentialLrSettings> exponential_lr_schema();

struct CosineAnnealingLrSettings {
  double T_max = 0;
  double eta_min = 0;
};
Schema<CosineAnnealingLrSettings> cosine_annealing_lr_schema();

struct CosineRestartsLrSettings {
  double T_0 = 0;
  double T_mult = 1;
  double eta_min = 0;
};
Schema<CosineRestartsLrSettings> cosine_restarts_lr_schema();

struct OneCycleLrSettings {
  double max_lr = 0;
  double total_steps = 0;  // or epochs x steps_per_epoch
  double epochs = 0;
  double steps_per_epoch = 0;
  double pct_start = 0.3;
  std::string anneal_strategy = "cos";
  bool cycle_momentum = true;
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;
  double final_div_factor = 1e4;
  bool three_phase = false;
};
Schema<OneCycleLrSettings> one_cycle_lr_schema();

struct LinearLrSettings {
  double start_factor = 1.0 / 3;
  double end_factor = 1;
  double total_iters = 5;
};
Schema<LinearLrSettings> linear_lr_schema();

struct ConstantLrSettings {
  double factor = 1.0 / 3;
  double total_iters = 5;
};
Schema<ConstantLrSettings> constant_lr_schema();

struct PolynomialLrSettings {
  double total_iters = 5;
  double power = 1;
};
Schema<PolynomialLrSettings> polynomial_lr_schema();

struct SequentialLrSettings {
  Node schedulers;  // a list of `_target_` nodes
  std::vector<std::int64_t> milestones;
};
Schema<SequentialLrSettings> sequential_lr_schema();

void add_schedule_components(Catalogue& catalogue);

}  // namespace tutti::config
