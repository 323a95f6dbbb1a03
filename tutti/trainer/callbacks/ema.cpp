#include <torch/torch.h>

#include "tutti/trainer/callbacks/callback.h"
#include "tutti/trainer/callbacks/weight_average.h"

namespace tutti::trainer {
namespace {

class Ema final : public Callback {
 public:
  explicit Ema(EmaOptions options) : options_(options) {}

  void on_step(const Moment& moment) override {
    if (moment.step < options_.start_step || moment.step % options_.every_n_steps != 0) return;
    average_.move_towards(moment.weights, 1 - options_.decay);
  }
  void before_validation(const Moment& moment) override { average_.swap(moment.weights); }
  void after_validation(const Moment& moment) override { average_.swap(moment.weights); }
  void save(Checkpoint& checkpoint) const override { deliver(average_.tensors(), checkpoint); }
  void load(const Checkpoint& checkpoint) override { average_.set(delivered(checkpoint)); }

 private:
  EmaOptions options_;
  WeightAverage average_;
};

}  // namespace

std::unique_ptr<Callback> make_ema(EmaOptions options) { return std::make_unique<Ema>(options); }

}  // namespace tutti::trainer
