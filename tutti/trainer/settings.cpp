#include "tutti/trainer/settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/core/error.h"
#include "tutti/core/log.h"

namespace tutti::trainer {

std::optional<std::int64_t> Amount::of(std::optional<std::int64_t> total, const char* key) const {
  if (!is_fraction) {
    const auto n = static_cast<std::int64_t>(value);
    return total ? std::min(n, *total) : n;
  }
  if (total) return static_cast<std::int64_t>(static_cast<double>(*total) * value);
  if (value == 1.0) return std::nullopt;
  throw ConfigError(
      fmt::format("trainer.{}: got {}, but the data is a stream of unknown length", key, value),
      "give a number of batches instead of a fraction");
}

LoopSettings validated(LoopSettings s) {
  const auto check = [](bool good, const std::string& message, const std::string& fix = {}) {
    if (!good) throw ConfigError(message, fix);
  };
  const auto check_amount = [&](const Amount& amount, const char* key) {
    check(amount.value >= 0 && (!amount.is_fraction || amount.value <= 1),
          fmt::format("trainer.{}: got {}, expected a fraction in [0, 1] or a number of batches",
                      key, amount.value));
  };
  check(s.accumulate_grad_batches >= 1,
        fmt::format("trainer.accumulate_grad_batches: got {}, expected at least 1",
                    s.accumulate_grad_batches));
  check_amount(s.limit_train_batches, "limit_train_batches");
  check_amount(s.limit_val_batches, "limit_val_batches");
  check_amount(s.val_check_interval, "val_check_interval");
  check_amount(s.overfit_batches, "overfit_batches");
  check(s.limit_train_batches.value > 0 || s.fast_dev_run > 0 || s.overfit_batches.value > 0,
        "trainer.limit_train_batches: got 0, so nothing would be trained",
        "leave it out, or give a number of batches (1) or a fraction (0.1) of the epoch");
  check(s.val_check_interval.value > 0, "trainer.val_check_interval: got 0, expected more",
        "set limit_val_batches: 0 to turn validation off");
  check(s.check_val_every_n_epoch || !s.val_check_interval.is_fraction,
        "trainer.val_check_interval: a fraction needs epochs, but check_val_every_n_epoch is null",
        "give val_check_interval a number of batches");
  if (s.fast_dev_run > 0) {
    s.limit_train_batches = s.limit_val_batches = Amount::count(s.fast_dev_run);
    s.val_check_interval = Amount::fraction(1);
    s.max_steps = s.fast_dev_run;
    s.max_epochs = 1;
    s.num_sanity_val_steps = 0;
    s.log_every_n_steps = 1;
    s.checkpoint_folder.clear();
  }
  if (s.overfit_batches.value > 0) s.limit_train_batches = s.limit_val_batches = s.overfit_batches;
  if (s.max_epochs < 0 && s.max_steps < 0 && !s.max_seconds) {
    log::warning("neither max_epochs, max_steps nor max_time is set: training 1000 epochs");
    s.max_epochs = 1000;
  }
  return s;
}

}  // namespace tutti::trainer
