#include "tutti/config/schemas/optim.h"

#include <fmt/format.h>

namespace tutti::config {
namespace {

// Keys of torch that pick an implementation, not a result, and what others call its keys.
template <class T>
void add_torch_words(Schema<T>& s) {
  for (const char* key : {"foreach", "fused", "capturable", "differentiable"})
    s.refused(key, {"false", "False", "true", "True"}, "remove it: the update is fused already");
  s.refused("maximize", {"false", "False"}, "negate the loss instead");
  s.elsewhere("learning_rate", "is called lr here");
}

template <class T>
Schema<T> with_betas(const char* name, const char* doc) {
  Schema<T> s(name, doc);
  s.field("lr", &T::lr, "learning rate", {.min = 0});
  s.field("betas", &T::betas, "decay of the running means of gradient and square",
          {.min = 0, .max = 1});
  s.field("eps", &T::eps, "added to the denominator", {.min = 0});
  s.field("weight_decay", &T::weight_decay, "weight decay", {.min = 0});
  s.check([](const Node& node, const T& settings, Problems& problems) {
    if (settings.betas.size() != 2)
      problems.add(node["betas"], fmt::format("got {} numbers, expected 2", settings.betas.size()),
                   "write betas: [0.9, 0.999]");
  });
  add_torch_words(s);
  return s;
}

template <class T>
Schema<T> adam_like(const char* name, const char* doc) {
  auto s = with_betas<T>(name, doc);
  s.field("amsgrad", &T::amsgrad, "use the largest second moment seen");
  return s;
}

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
  add_torch_words(s);
  return s;
}

Schema<RAdamSettings> radam_schema() {
  auto s = with_betas<RAdamSettings>("radam", "Adam with its early steps rectified.");
  s.refused("decoupled_weight_decay", {"false", "False"}, "use torch.optim.AdamW");
  return s;
}

Schema<NAdamSettings> nadam_schema() {
  auto s = with_betas<NAdamSettings>("nadam", "Adam with Nesterov's momentum.");
  s.field("momentum_decay", &NAdamSettings::momentum_decay, "how fast the momentum is warmed up",
          {.min = 0});
  s.refused("decoupled_weight_decay", {"false", "False"}, "use torch.optim.AdamW");
  return s;
}

Schema<AdagradSettings> adagrad_schema() {
  using S = AdagradSettings;
  Schema<S> s("adagrad", "Steps divided by the root of all squares so far.");
  s.field("lr", &S::lr, "learning rate", {.min = 0});
  s.field("lr_decay", &S::lr_decay, "lr is divided by 1 + this x updates", {.min = 0});
  s.field("weight_decay", &S::weight_decay, "added to the gradient", {.min = 0});
  s.field("initial_accumulator_value", &S::initial_accumulator_value, "squares to begin with",
          {.min = 0});
  s.field("eps", &S::eps, "added to the denominator", {.min = 0});
  add_torch_words(s);
  return s;
}

Schema<AdadeltaSettings> adadelta_schema() {
  using S = AdadeltaSettings;
  Schema<S> s("adadelta", "Steps in the unit of earlier steps.");
  s.field("lr", &S::lr, "what the step is multiplied by", {.min = 0});
  s.field("rho", &S::rho, "decay of the running means of squares", {.min = 0, .max = 1});
  s.field("eps", &S::eps, "added under both roots", {.min = 0});
  s.field("weight_decay", &S::weight_decay, "added to the gradient", {.min = 0});
  add_torch_words(s);
  return s;
}

Schema<RmspropSettings> rmsprop_schema() {
  using S = RmspropSettings;
  Schema<S> s("rmsprop", "Steps divided by the root of a running mean of squares.");
  s.field("lr", &S::lr, "learning rate", {.min = 0});
  s.field("alpha", &S::alpha, "decay of the running mean of squares", {.min = 0, .max = 1});
  s.field("eps", &S::eps, "added to the denominator", {.min = 0});
  s.field("weight_decay", &S::weight_decay, "added to the gradient", {.min = 0});
  s.field("momentum", &S::momentum, "momentum", {.min = 0});
  s.field("centered", &S::centered, "divide by the standard deviation instead");
  add_torch_words(s);
  return s;
}

void add_optim_components(Catalogue& catalogue) {
  const std::string torch = "torch.optim.";
  catalogue.add("optimizer", adam_schema(), {torch + "Adam"});
  catalogue.add("optimizer", adamw_schema(), {torch + "AdamW"});
  catalogue.add("optimizer", sgd_schema(), {torch + "SGD"});
  catalogue.add("optimizer", radam_schema(), {torch + "RAdam"});
  catalogue.add("optimizer", nadam_schema(), {torch + "NAdam"});
  catalogue.add("optimizer", adagrad_schema(), {torch + "Adagrad"});
  catalogue.add("optimizer", adadelta_schema(), {torch + "Adadelta"});
  catalogue.add("optimizer", rmsprop_schema(), {torch + "RMSprop"});
  for (const char* name : {"Adamax", "ASGD", "Rprop", "LBFGS", "SparseAdam"})
    catalogue.instead("optimizer", torch + name, "use torch.optim.AdamW, or a plugin's");
}

}  // namespace tutti::config
