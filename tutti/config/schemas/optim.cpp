#include "tutti/config/schemas/optim.h"

#include <fmt/format.h>

namespace tutti::config {
namespace {

// Keys of torch that pick an implementation, not a result.
template <class T>
void ignore_torch_switches(Schema<T>& s) {
  for (const char* key : {"foreach", "fused", "capturable", "differentiable"})
    s.refused(key, {"false", "False", "true", "True"}, "remove it: the update is fused already");
  s.refused("maximize", {"false", "False"}, "negate the loss instead");
}

template <class T>
Schema<T> adam_like(const char* name, const char* doc) {
  Schema<T> s(name, doc);
  s.field("lr", &T::lr, "learning rate", {.min = 0});
  s.field("betas", &T::betas, "decay of the running means of gradient and square",
          {.min = 0, .max = 1});
  s.field("eps", &T::eps, "added to the denominator", {.min = 0});
  s.field("weight_decay", &T::weight_decay, "weight decay", {.min = 0});
  s.field("amsgrad", &T::amsgrad, "use the largest second moment seen");
  s.check([](const Node& node, const T& settings, Problems& problems) {
    if (settings.betas.size() != 2)
      problems.add(node["betas"], fmt::format("got {} numbers, expected 2", settings.betas.size()),
                   "write betas: [0.9, 0.999]");
  });
  ignore_torch_switches(s);
  return s;
}

const Rule kSteps = {.min = 1, .unit = "updates"};

}  // namespace

Schema<AdamSettings> adam_schema() {
  return adam_like<AdamSettings>("adam", "Adam; weight decay is added to the gradient.");
}
Schema<AdamWSettings> adamw_schema() {
  return adam_like<AdamWSettings>("adamw", "Adam with decoupled weight decay.");
}

Schema<SgdSettings> sgd_schema() {
  Schema<SgdSettings> s("sgd", "Stochastic gradient descent.");
  s.field("lr", &SgdSettings::lr, "learning rate", {.min = 0});
  s.field("momentum", &SgdSettings::momentum, "momentum", {.min = 0});
  s.field("dampening", &SgdSettings::dampening, "dampening of the momentum");
  s.field("weight_decay", &SgdSettings::weight_decay, "added to the gradient", {.min = 0});
  s.field("nesterov", &SgdSettings::nesterov, "Nesterov's momentum");
  s.check([](const Node& node, const SgdSettings& settings, Problems& problems) {
    if (settings.nesterov && (settings.momentum <= 0 || settings.dampening != 0))
      problems.add(node["nesterov"], "got true without a momentum above 0 and a dampening of 0",
                   "set momentum: 0.9");
  });
  ignore_torch_switches(s);
  return s;
}

Schema<ConstantLrSettings> constant_lr_schema() {
  return Schema<ConstantLrSettings>("constant", "The optimizer's lr, all the time.");
}

Schema<WarmupLrSettings> warmup_lr_schema() {
  Schema<WarmupLrSettings> s(
      "warmup", "lr x w^0.5 x min(s^-0.5, s x w^-1.5), s = update + 1, w = warmup_steps.");
  s.field("warmup_steps", &WarmupLrSettings::warmup_steps, "updates until lr is reached", kSteps);
  return s;
}

Schema<PiecewiseLinearWarmupLrSettings> piecewise_linear_warmup_lr_schema() {
  using S = PiecewiseLinearWarmupLrSettings;
  Schema<S> s("piecewise_linear_warmup",
              "Straight lines through the given points, then lr x w^0.5 x s^-0.5 with the last w.");
  s.field("warmup_steps_list", &S::warmup_steps_list, "update numbers, increasing", {.min = 0});
  s.field("warmup_lr_list", &S::warmup_lr_list, "learning rate at each of them", {.min = 0});
  s.check([](const Node& node, const S& settings, Problems& problems) {
    const auto& steps = settings.warmup_steps_list;
    if (steps.size() != settings.warmup_lr_list.size() || steps.size() < 2) {
      problems.add(node, fmt::format("warmup_steps_list has {} entries and warmup_lr_list {}, "
                                     "expected the same number, 2 or more",
                                     steps.size(), settings.warmup_lr_list.size()));
    }
    for (std::size_t i = 1; i < steps.size(); ++i)
      if (!(steps[i] > steps[i - 1]))
        problems.add(node["warmup_steps_list"][i],
                     fmt::format("got {:g} after {:g}, expected increasing numbers", steps[i],
                                 steps[i - 1]));
  });
  return s;
}

Schema<NoamLrSettings> noam_lr_schema() {
  Schema<NoamLrSettings> s("noam", "lr x d^-0.5 x min(s^-0.5, s x w^-1.5), d = model_size.");
  s.field("model_size", &NoamLrSettings::model_size, "width of the model", {.min = 1});
  s.field("warmup_steps", &NoamLrSettings::warmup_steps, "updates until the peak", kSteps);
  return s;
}

Schema<CosineWarmupLrSettings> cosine_warmup_lr_schema() {
  using S = CosineWarmupLrSettings;
  Schema<S> s("cosine_warmup", "Linear up to lr, then half a cosine down to min_lr.");
  s.field("warmup_steps", &S::warmup_steps, "updates until lr is reached",
          {.min = 0, .unit = "updates"});
  s.field("total_steps", &S::total_steps, "update at which min_lr is reached",
          {.min = 1, .unit = "updates", .required = true});
  s.field("min_lr", &S::min_lr, "learning rate at the end", {.min = 0});
  s.deprecated("num_warmup_steps", "warmup_steps");
  s.deprecated("num_training_steps", "total_steps");
  s.check([](const Node& node, const S& settings, Problems& problems) {
    if (node["total_steps"].defined() && settings.total_steps <= settings.warmup_steps)
      problems.add(node["total_steps"],
                   fmt::format("got {:g}, expected more than warmup_steps = {:g}",
                               settings.total_steps, settings.warmup_steps));
  });
  return s;
}

Schema<PlateauLrSettings> plateau_lr_schema() {
  using S = PlateauLrSettings;
  Schema<S> s("plateau", "Multiplied by `factor` when scheduler_monitor stops improving.");
  s.field("mode", &S::mode, "min: lower is better", {.one_of = {"min", "max"}});
  s.field("factor", &S::factor, "what lr is multiplied by", {.min = 0, .max = 1});
  s.field("patience", &S::patience, "validations without improvement before it acts", {.min = 0});
  s.field("threshold", &S::threshold, "relative change that counts as improvement", {.min = 0});
  s.field("cooldown", &S::cooldown, "validations to wait after a reduction", {.min = 0});
  s.field("min_lr", &S::min_lr, "never below", {.min = 0});
  s.refused("threshold_mode", {"rel"}, "remove it: the threshold is relative");
  s.refused("eps", {}, "remove it");
  s.refused("verbose", {"false", "False", "true", "True"},
            "remove it: learning rates are logged always");
  return s;
}

void add_optim_components(Catalogue& catalogue) {
  catalogue.add("optimizer", adam_schema(), {"torch.optim.Adam"});
  catalogue.add("optimizer", adamw_schema(), {"torch.optim.AdamW"});
  catalogue.add("optimizer", sgd_schema(), {"torch.optim.SGD"});
  for (const char* name : {"RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "LBFGS"})
    catalogue.instead("optimizer", std::string("torch.optim.") + name, "use torch.optim.AdamW");

  catalogue.add("scheduler", constant_lr_schema(), {"torch.optim.lr_scheduler.ConstantLR"});
  catalogue.add("scheduler", warmup_lr_schema(), {"espnet2.schedulers.warmup_lr.WarmupLR"});
  catalogue.add("scheduler", piecewise_linear_warmup_lr_schema(),
                {"espnet2.schedulers.piecewise_linear_warmup_lr.PiecewiseLinearWarmupLR"});
  catalogue.add("scheduler", noam_lr_schema(), {"espnet2.schedulers.noam_lr.NoamLR"});
  catalogue.add("scheduler", cosine_warmup_lr_schema(),
                {"transformers.get_cosine_schedule_with_warmup"});
  catalogue.add("scheduler", plateau_lr_schema(), {"torch.optim.lr_scheduler.ReduceLROnPlateau"});
  const std::string cosine = "use cosine_warmup with warmup_steps, total_steps and min_lr";
  catalogue.instead("scheduler",
                    "espnet2.schedulers.cosine_anneal_warmup_restart.CosineAnnealingWarmupRestarts",
                    cosine);
  catalogue.instead("scheduler", "torch.optim.lr_scheduler.CosineAnnealingLR", cosine);
  catalogue.instead("scheduler", "torch.optim.lr_scheduler.OneCycleLR", cosine);
  const std::string piecewise = "use piecewise_linear_warmup with the points of the curve";
  catalogue.instead("scheduler", "espnet2.schedulers.tristage_lr.TristageLR", piecewise);
  catalogue.instead(
      "scheduler", "espnet2.schedulers.exponential_decay_warmup.ExponentialDecayWarmup", piecewise);
  catalogue.instead("scheduler", "torch.optim.lr_scheduler.StepLR", piecewise);
  catalogue.instead("scheduler", "torch.optim.lr_scheduler.LinearLR", piecewise);
  catalogue.instead("scheduler",
                    "espnet2.schedulers.warmup_reducelronplateau.WarmupReduceLROnPlateau",
                    "use plateau");
}

}  // namespace tutti::config
