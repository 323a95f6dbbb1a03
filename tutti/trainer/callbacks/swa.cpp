#include "tutti/trainer/callbacks/callback.h"
#include "tutti/trainer/callbacks/weight_average.h"

namespace tutti::trainer {
namespace {

class Swa final : public Callback {
 public:
  explicit Swa(std::int64_t first_epoch) : first_epoch_(first_epoch) {}

  void before_validation(const Moment& moment) override {
    if (moment.epoch_over) take(moment);  // what is validated is what is saved
    average_.swap(moment.weights);
  }
  void after_validation(const Moment& moment) override { average_.swap(moment.weights); }
  void on_epoch_end(const Moment& moment) override { take(moment); }

  void save(Checkpoint& checkpoint) const override {
    checkpoint.trainer["callbacks"]["swa"] = {{"count", count_}, {"last_epoch", last_epoch_}};
    deliver(average_.tensors(), checkpoint);
  }
  void load(const Checkpoint& checkpoint) override {
    const Json& all = checkpoint.trainer.at("callbacks");
    if (!all.contains("swa")) return;
    count_ = all["swa"].value("count", std::int64_t{0});
    last_epoch_ = all["swa"].value("last_epoch", std::int64_t{-1});
    average_.set(delivered(checkpoint));
  }

 private:
  // Once per epoch.
  void take(const Moment& moment) {
    if (moment.epoch < first_epoch_ || moment.epoch <= last_epoch_) return;
    last_epoch_ = moment.epoch;
    average_.move_towards(moment.weights, 1.0 / static_cast<double>(++count_));
  }

  std::int64_t first_epoch_;
  std::int64_t count_ = 0;
  std::int64_t last_epoch_ = -1;
  WeightAverage average_;
};

}  // namespace

std::unique_ptr<Callback> make_swa(std::int64_t first_epoch) {
  return std::make_unique<Swa>(first_epoch);
}

}  // namespace tutti::trainer
