#include "tutti/config/schemas/schedules.h"

#include <fmt/format.h>

#include <cmath>

namespace tutti::config {
namespace {

const Rule kSteps = {.min = 1, .unit = "updates"};
const Rule kNeededSteps = {.min = 1, .unit = "updates", .required = true};

// torch's keys that change no number.
template <class T>
void ignore_schedule_switches(Schema<T>& s) {
  s.refused("verbose", {"false", "False", "true", "True", "deprecated"},
            "remove it: learning rates are logged always");
  s.refused("last_epoch", {"-1"}, "remove it: a resumed run knows where it is");
}

}  // namespace

Schema<ConstantSettings> constant_schema() {
  return Schema<ConstantSettings>("constant", "The optimizer's lr, all the time.");
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
  s.field("threshold", &S::threshold, "change that counts as improvement", {.min = 0});
  s.field("cooldown", &S::cooldown, "validations to wait after a reduction", {.min = 0});
  s.field("min_lr", &S::min_lr, "never below", {.min = 0});
  s.field("threshold_mode", &S::threshold_mode, "rel: the threshold is a share of the best",
          {.one_of = {"rel", "abs"}});
  s.field("eps", &S::eps, "smaller reductions are left out", {.min = 0});
  s.refused("verbose", {"false", "False", "true", "True"},
            "remove it: learning rates are logged always");
  return s;
}

Schema<TriStageLrSettings> tri_stage_lr_schema() {
  using S = TriStageLrSettings;
  Schema<S> s("tri_stage", "Linear up to lr, lr for a while, then exponentially down.");
  s.field("max_steps", &S::max_steps, "updates in all", kSteps);
  s.field("warmup_ratio", &S::warmup_ratio, "share of them that warms up", {.min = 0, .max = 1});
  s.field("hold_ratio", &S::hold_ratio, "share of them at lr", {.min = 0, .max = 1});
  s.field("decay_ratio", &S::decay_ratio, "share of them that goes down", {.min = 0, .max = 1});
  s.field("init_lr_scale", &S::init_lr_scale, "begins at this x lr", {.min = 0});
  s.field("final_lr_scale", &S::final_lr_scale, "ends at this x lr", {.min = 1e-12});
  s.check([](const Node& node, const S& o, Problems& problems) {
    const double sum = o.warmup_ratio + o.hold_ratio + o.decay_ratio;
    if (std::abs(sum - 1) > 1e-6)
      problems.add(node, fmt::format("the three ratios sum to {:g}, expected 1", sum),
                   "set warmup_ratio: 0.1, hold_ratio: 0.4, decay_ratio: 0.5");
  });
  return s;
}

Schema<StepLrSettings> step_lr_schema() {
  Schema<StepLrSettings> s("step_lr", "Multiplied by gamma every step_size updates.");
  s.field("step_size", &StepLrSettings::step_size, "updates between two reductions", kNeededSteps);
  s.field("gamma", &StepLrSettings::gamma, "what lr is multiplied by", {.min = 0});
  ignore_schedule_switches(s);
  return s;
}

Schema<MultiStepLrSettings> multi_step_lr_schema() {
  Schema<MultiStepLrSettings> s("multi_step_lr", "Multiplied by gamma at each milestone.");
  s.field("milestones", &MultiStepLrSettings::milestones, "update numbers",
          {.min = 0, .required = true});
  s.field("gamma", &MultiStepLrSettings::gamma, "what lr is multiplied by", {.min = 0});
  ignore_schedule_switches(s);
  return s;
}

Schema<ExponentialLrSettings> exponential_lr_schema() {
  Schema<ExponentialLrSettings> s("exponential_lr", "Multiplied by gamma in every update.");
  s.field("gamma", &ExponentialLrSettings::gamma, "what lr is multiplied by",
          {.min = 0, .required = true});
  ignore_schedule_switches(s);
  return s;
}

Schema<CosineAnnealingLrSettings> cosine_annealing_lr_schema() {
  using S = CosineAnnealingLrSettings;
  Schema<S> s("cosine_annealing_lr",
              "Half a cosine from lr to eta_min in T_max updates, and back.");
  s.field("T_max", &S::T_max, "updates to eta_min", kNeededSteps);
  s.field("eta_min", &S::eta_min, "lowest learning rate", {.min = 0});
  ignore_schedule_switches(s);
  return s;
}

Schema<CosineRestartsLrSettings> cosine_restarts_lr_schema() {
  using S = CosineRestartsLrSettings;
  Schema<S> s("cosine_annealing_warm_restarts", "Half a cosine down to eta_min, again and again.");
  s.field("T_0", &S::T_0, "updates of the first cosine", kNeededSteps);
  s.field("T_mult", &S::T_mult, "how much longer each is than the one before", {.min = 1});
  s.field("eta_min", &S::eta_min, "lowest learning rate", {.min = 0});
  ignore_schedule_switches(s);
  return s;
}

Schema<OneCycleLrSettings> one_cycle_lr_schema() {
  using S = OneCycleLrSettings;
  Schema<S> s("one_cycle_lr",
              "Up to max_lr, then down to nearly nothing; the momentum the other way.");
  s.field("max_lr", &S::max_lr, "highest learning rate", {.min = 0, .required = true});
  s.field("total_steps", &S::total_steps, "updates of the cycle", {.min = 0, .unit = "updates"});
  s.field("epochs", &S::epochs, "with steps_per_epoch, instead of total_steps", {.min = 0});
  s.field("steps_per_epoch", &S::steps_per_epoch, "updates per epoch", {.min = 0});
  s.field("pct_start", &S::pct_start, "share of the cycle that goes up", {.min = 0, .max = 1});
  s.field("anneal_strategy", &S::anneal_strategy, "shape", {.one_of = {"cos", "linear"}});
  s.field("cycle_momentum", &S::cycle_momentum, "move momentum, or Adam's first beta, too");
  s.field("base_momentum", &S::base_momentum, "at max_lr", {.min = 0, .max = 1});
  s.field("max_momentum", &S::max_momentum, "at both ends", {.min = 0, .max = 1});
  s.field("div_factor", &S::div_factor, "begins at max_lr / this", {.min = 1e-12});
  s.field("final_div_factor", &S::final_div_factor, "ends at the beginning's rate / this",
          {.min = 1e-12});
  s.field("three_phase", &S::three_phase, "down as it went up, then to nearly nothing");
  s.check([](const Node& node, const S& o, Problems& problems) {
    const double total = o.total_steps > 0 ? o.total_steps : o.epochs * o.steps_per_epoch;
    if (total < 2)
      problems.add(node, "the cycle has no length", "add total_steps: UPDATES");
    else if (o.pct_start * total <= 1 && !(o.pct_start == 0))
      problems.add(node["pct_start"], "the way up is shorter than an update");
  });
  ignore_schedule_switches(s);
  return s;
}

Schema<LinearLrSettings> linear_lr_schema() {
  using S = LinearLrSettings;
  Schema<S> s("linear_lr", "A straight line from start_factor x lr to end_factor x lr.");
  s.field("start_factor", &S::start_factor, "of lr, at the beginning", {.min = 0});
  s.field("end_factor", &S::end_factor, "of lr, at the end", {.min = 0});
  s.field("total_iters", &S::total_iters, "updates in between", kSteps);
  ignore_schedule_switches(s);
  return s;
}

Schema<ConstantLrSettings> constant_lr_schema() {
  Schema<ConstantLrSettings> s("constant_lr", "factor x lr for total_iters updates, then lr.");
  s.field("factor", &ConstantLrSettings::factor, "of lr", {.min = 0});
  s.field("total_iters", &ConstantLrSettings::total_iters, "updates with it",
          {.min = 0, .unit = "updates"});
  ignore_schedule_switches(s);
  return s;
}

Schema<PolynomialLrSettings> polynomial_lr_schema() {
  Schema<PolynomialLrSettings> s("polynomial_lr", "lr x (1 - update / total_iters)^power.");
  s.field("total_iters", &PolynomialLrSettings::total_iters, "updates until 0", kSteps);
  s.field("power", &PolynomialLrSettings::power, "1: a straight line", {.min = 0});
  ignore_schedule_switches(s);
  return s;
}

Schema<SequentialLrSettings> sequential_lr_schema() {
  using S = SequentialLrSettings;
  Schema<S> s("sequential_lr", "One schedule after the other, each counting from 0.");
  s.field("schedulers", &S::schedulers, "a list of _target_ nodes", {.required = true});
  s.field("milestones", &S::milestones, "updates at which the next one begins",
          {.min = 0, .required = true});
  s.check([](const Node& node, const S& o, Problems& problems) {
    if (!o.schedulers.is_list() || o.schedulers.size() != o.milestones.size() + 1)
      return problems.add(
          node, fmt::format("got {} schedulers and {} milestones, expected one milestone less",
                            o.schedulers.is_list() ? o.schedulers.size() : 0, o.milestones.size()));
    for (std::size_t i = 1; i < o.milestones.size(); ++i)
      if (o.milestones[i] <= o.milestones[i - 1])
        problems.add(node["milestones"], "expected increasing numbers");
    Catalogue known;
    add_schedule_components(known);
    for (const Node& scheduler : o.schedulers.elements()) {
      const Node target = scheduler.is_map() ? scheduler["_target_"] : scheduler;
      const Component* component =
          target.is_scalar() ? known.find("scheduler", target.raw()) : nullptr;
      if (!component) continue;  // a plugin's; made or refused when training begins
      if (component->name == "plateau" || component->name == "sequential_lr")
        problems.add(scheduler, "this one cannot be part of a sequence");
      else
        known.check("scheduler", scheduler, problems);
    }
  });
  ignore_schedule_switches(s);
  return s;
}

void add_schedule_components(Catalogue& catalogue) {
  const std::string torch = "torch.optim.lr_scheduler.", espnet = "espnet2.schedulers.";
  catalogue.add("scheduler", constant_schema());
  catalogue.add("scheduler", warmup_lr_schema(), {espnet + "warmup_lr.WarmupLR"});
  catalogue.add("scheduler", piecewise_linear_warmup_lr_schema(),
                {espnet + "piecewise_linear_warmup_lr.PiecewiseLinearWarmupLR"});
  catalogue.add("scheduler", noam_lr_schema(), {espnet + "noam_lr.NoamLR"});
  catalogue.add("scheduler", cosine_warmup_lr_schema(),
                {"transformers.get_cosine_schedule_with_warmup"});
  catalogue.add("scheduler", tri_stage_lr_schema(), {espnet + "tristage_lr.TristageLR"});
  catalogue.add("scheduler", plateau_lr_schema(), {torch + "ReduceLROnPlateau"});
  catalogue.add("scheduler", step_lr_schema(), {torch + "StepLR"});
  catalogue.add("scheduler", multi_step_lr_schema(), {torch + "MultiStepLR"});
  catalogue.add("scheduler", exponential_lr_schema(), {torch + "ExponentialLR"});
  catalogue.add("scheduler", cosine_annealing_lr_schema(), {torch + "CosineAnnealingLR"});
  catalogue.add("scheduler", cosine_restarts_lr_schema(), {torch + "CosineAnnealingWarmRestarts"});
  catalogue.add("scheduler", one_cycle_lr_schema(), {torch + "OneCycleLR"});
  catalogue.add("scheduler", linear_lr_schema(), {torch + "LinearLR"});
  catalogue.add("scheduler", constant_lr_schema(), {torch + "ConstantLR"});
  catalogue.add("scheduler", polynomial_lr_schema(), {torch + "PolynomialLR"});
  catalogue.add("scheduler", sequential_lr_schema(), {torch + "SequentialLR"});
  catalogue.instead("scheduler",
                    espnet + "cosine_anneal_warmup_restart.CosineAnnealingWarmupRestarts",
                    "use sequential_lr of linear_lr and cosine_annealing_warm_restarts");
  catalogue.instead("scheduler", espnet + "exponential_decay_warmup.ExponentialDecayWarmup",
                    "use sequential_lr of linear_lr and exponential_lr");
  catalogue.instead("scheduler", espnet + "warmup_reducelronplateau.WarmupReduceLROnPlateau",
                    "use plateau");
  catalogue.instead("scheduler", torch + "CyclicLR",
                    "use one_cycle_lr or cosine_annealing_warm_restarts");
  for (const char* name : {"LambdaLR", "MultiplicativeLR", "ChainedScheduler"})
    catalogue.instead("scheduler", torch + name,
                      "use sequential_lr or piecewise_linear_warmup, or a plugin's");
}

}  // namespace tutti::config
