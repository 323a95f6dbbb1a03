#include "tutti/trainer/callbacks/users_parts.h"

#include "tutti/core/users_code.h"

namespace tutti::trainer {
namespace {

class GuardedCallback final : public Callback {
 public:
  GuardedCallback(std::string who, std::unique_ptr<Callback> inner)
      : who_(std::move(who)), inner_(std::move(inner)) {}
  void on_step(const Moment& moment) override {
    users_code(who_, [&] { inner_->on_step(moment); });
  }
  void before_validation(const Moment& moment) override {
    users_code(who_, [&] { inner_->before_validation(moment); });
  }
  void after_validation(const Moment& moment) override {
    users_code(who_, [&] { inner_->after_validation(moment); });
  }
  void on_epoch_end(const Moment& moment) override {
    users_code(who_, [&] { inner_->on_epoch_end(moment); });
  }
  void save(Checkpoint& checkpoint) const override {
    users_code(who_, [&] { inner_->save(checkpoint); });
  }
  void load(const Checkpoint& checkpoint) override {
    users_code(who_, [&] { inner_->load(checkpoint); });
  }

 private:
  const std::string who_;
  const std::unique_ptr<Callback> inner_;
};

class GuardedLogger final : public Logger {
 public:
  GuardedLogger(std::string who, std::unique_ptr<Logger> inner)
      : who_(std::move(who)), inner_(std::move(inner)) {}
  void log(const LogPoint& at, const Metrics& metrics) override {
    users_code(who_, [&] { inner_->log(at, metrics); });
  }
  void flush() override {
    users_code(who_, [&] { inner_->flush(); });
  }
  void rewind(std::int64_t step, bool at_the_end) override {
    users_code(who_, [&] { inner_->rewind(step, at_the_end); });
  }

 private:
  const std::string who_;
  const std::unique_ptr<Logger> inner_;
};

}  // namespace

std::unique_ptr<Callback> guarded(std::string who, std::unique_ptr<Callback> callback) {
  return std::make_unique<GuardedCallback>(std::move(who), std::move(callback));
}

std::unique_ptr<Logger> guarded(std::string who, std::unique_ptr<Logger> logger) {
  return std::make_unique<GuardedLogger>(std::move(who), std::move(logger));
}

}  // namespace tutti::trainer
