#include "tutti/trainer/recompute.h"

#include <torch/torch.h>

#include <set>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/trainer/autocast.h"
#include "tutti/trainer/strategies/norm_sync.h"
#include "tutti/trainer/strategies/units.h"

namespace tutti::trainer {

namespace {

using Function = std::function<torch::Tensor(const torch::Tensor&)>;

// What decides the outcome of a block besides its inputs. Thread-local in torch, and a backward
// pass on a GPU runs in another thread.
class Surroundings {
 public:
  explicit Surroundings(at::Device device)
      : device_(device),
        autocast_(autocast_on(device.type())),
        type_(autocast_type(device.type())),
        generators_{at::globalContext().defaultGenerator(device)} {
    // Models may draw the keys of their dropout on the host.
    if (!device.is_cpu())
      generators_.push_back(at::globalContext().defaultGenerator(at::Device(at::kCPU)));
    random_ = states();
  }

  // Runs `work` in these surroundings and puts back those of the caller.
  template <class Work>
  void during(Work work) {
    const bool old_autocast = autocast_on(device_.type());
    const at::ScalarType old_type = autocast_type(device_.type());
    const std::vector<at::Tensor> old_random = states();
    set_states(random_);
    set_autocast(device_.type(), autocast_);
    set_autocast_type(device_.type(), type_);
    // Casts cached while gradients were off must not be reused with a graph, nor the reverse.
    at::autocast::clear_cache();
    const auto restore = [&] {
      at::autocast::clear_cache();
      set_autocast(device_.type(), old_autocast);
      set_autocast_type(device_.type(), old_type);
      set_states(old_random);
    };
    try {
      work();
    } catch (...) {  // whatever it is, the caller's random numbers come back first
      restore();
      throw;
    }
    restore();
  }

 private:
  std::vector<at::Tensor> states() {
    std::vector<at::Tensor> all;
    for (at::Generator& generator : generators_) {
      std::lock_guard<std::mutex> lock(generator.mutex());
      all.push_back(generator.get_state());
    }
    return all;
  }
  void set_states(const std::vector<at::Tensor>& all) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::lock_guard<std::mutex> lock(generators_[i].mutex());
      generators_[i].set_state(all[i]);
    }
  }

  at::Device device_;
  bool autocast_ = false;
  at::ScalarType type_;
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> random_;
};

thread_local bool t_recomputing = false;

struct Recipe : torch::CustomClassHolder {
  Recipe(Function f, Surroundings s) : function(std::move(f)), surroundings(std::move(s)) {}
  Function function;
  Surroundings surroundings;
};

class RecomputedBlock : public torch::autograd::Function<RecomputedBlock> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               c10::intrusive_ptr<Recipe> recipe, at::TensorList parameters) {
    torch::autograd::variable_list saved = {x};
    saved.insert(saved.end(), parameters.begin(), parameters.end());
    context->save_for_backward(saved);
    context->saved_data["recipe"] = c10::IValue::make_capsule(recipe);
    torch::NoGradGuard no_grad;
    torch::Tensor out = recipe->function(x);
    at::autocast::clear_cache();
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    auto recipe =
        c10::static_intrusive_pointer_cast<Recipe>(context->saved_data["recipe"].toCapsule());
    torch::Tensor x = saved[0].detach();
    x.set_requires_grad(context->needs_input_grad(0));
    torch::autograd::variable_list wanted, result(1 + 1 + saved.size() - 1);
    std::vector<std::size_t> places;
    if (x.requires_grad()) {
      wanted.push_back(x);
      places.push_back(0);
    }
    for (std::size_t i = 1; i < saved.size(); ++i) {
      if (!saved[i].requires_grad()) continue;
      wanted.push_back(saved[i]);
      places.push_back(i + 1);  // after x and the recipe
    }
    torch::Tensor out;
    recipe->surroundings.during([&] {
      const torch::AutoGradMode with_grad(true);
      struct Again {
        bool before = std::exchange(t_recomputing, true);
        ~Again() { t_recomputing = before; }
      } again;
      out = recipe->function(x);
    });
    const auto found = torch::autograd::grad({out}, wanted, {gradients[0]}, /*retain_graph=*/false,
                                             /*create_graph=*/false, /*allow_unused=*/true);
    for (std::size_t i = 0; i < found.size(); ++i) result[places[i]] = found[i];
    return result;
  }
};

}  // namespace

torch::Tensor checkpointed(Function function, const torch::Tensor& x,
                           const std::vector<torch::Tensor>& parameters) {
  if (!torch::GradMode::is_enabled()) return function(x);
  auto recipe = c10::make_intrusive<Recipe>(std::move(function), Surroundings(x.device()));
  return RecomputedBlock::apply(x, recipe, at::TensorList(parameters));
}

bool recomputing() { return t_recomputing; }

void enable_recomputation(TrainableModel& model, const std::vector<std::string>& classes) {
  if (classes.empty()) return;
  auto* whole = dynamic_cast<ModuleModel*>(&model);
  std::set<std::string> found, possible;
  if (whole)
    for (const auto& module : whole->module()->modules()) {
      auto* recomputable = dynamic_cast<Recomputable*>(module.get());
      if (!recomputable) continue;
      const std::string name = module_class(*module);
      possible.insert(name);
      if (std::find(classes.begin(), classes.end(), name) == classes.end()) continue;
      found.insert(name);
      recomputable->set_recompute(true);
    }
  for (const std::string& wanted : classes) {
    if (found.count(wanted)) continue;
    const std::vector<std::string> all(possible.begin(), possible.end());
    throw ConfigError(
        "trainer.activation_checkpointing: got '" + wanted + "', expected " +
            (all.empty()
                 ? std::string("nothing: this model has no layer that can be computed again")
                 : "one of " + join(all, ", ")),
        closest_match(wanted, all).empty() ? ""
                                           : "did you mean '" + closest_match(wanted, all) + "'?");
  }
}

}  // namespace tutti::trainer
