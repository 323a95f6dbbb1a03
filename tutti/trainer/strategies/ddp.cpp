#include <fmt/format.h>
#include <torch/torch.h>
#include <map>

#include "tutti/core/error.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/trainer/strategies/norm_sync.h"
#include "tutti/trainer/strategies/reducer.h"
#include "tutti/trainer/strategies/strategy.h"

namespace tutti::trainer {
namespace {

// One line per tensor, so that the first difference between two ranks can be shown as text.
std::string signature(const NamedTensors& parameters, const NamedTensors& buffers) {
  std::string text;
  const auto append = [&text](const char* kind, const NamedTensors& tensors) {
    for (const auto& [name, tensor] : tensors) {
      std::vector<std::string> sizes;
      for (const auto size : tensor.sizes()) sizes.push_back(std::to_string(size));
      text += fmt::format("{} {} [{}] {}{}\n", kind, name, join(sizes, ", "),
                          c10::toString(tensor.scalar_type()),
                          tensor.requires_grad() ? " trainable" : "");
    }
  };
  append("parameter", parameters);
  append("buffer", buffers);
  return text;
}

class DdpStrategy final : public Strategy {
 public:
  DdpStrategy(Collectives& collectives, Control& control, const ReducerOptions& options,
              std::shared_ptr<NormSync> norms)
      : Strategy(options.find_unused ? "ddp_find_unused_parameters_true" : "ddp",
                 /*moves_model=*/false, /*lockstep=*/norms != nullptr),
        collectives_(collectives),
        control_(control),
        options_(options),
        norms_(std::move(norms)) {}

  std::vector<NamedTensors> setup(TrainableModel& model, const std::vector<NamedTensors>& groups,
                                  at::Device device) override {
    check_same_model(model, control_);
    if (norms_) norms_->attach(model, device);
    broadcast_from_rank_zero(model);
    model_ = &model;
    std::size_t num_buckets = 0;
    for (const NamedTensors& group : groups) {
      reducers_.push_back(std::make_unique<Reducer>(group, collectives_, control_, options_));
      num_buckets += reducers_.back()->buckets().size();
    }
    if (control_.rank() == 0)
      log::info("ddp: gradients are summed in {} buckets of about {:.4g} MiB", num_buckets,
                static_cast<double>(options_.bucket_bytes) / (1 << 20));
    return groups;
  }
  void begin(const Pass& pass) override {
    if (norms_) norms_->begin(pass.training);
    if (pass.training && pass.last_of_window)
      for (const auto& reducer : reducers_) reducer->arm();
  }
  void settle(bool) override {
    if (norms_) norms_->settle();
  }
  void finish(std::size_t group, bool complete) override {
    reducers_[group]->finish(complete);
    if (group == 0) share_buffers();
  }

  // Gradients are the same on every rank after finish(), so the local norm is the global one.
  at::Tensor squared_norm(const std::vector<at::Tensor>& gradients) override {
    return local_squared_norm(gradients);
  }

 private:
  // As torch's DDP does: everyone goes on with rank 0's running statistics, which are those a
  // checkpoint holds. Large buffers are tables that nobody changes.
  void share_buffers() {
    constexpr std::int64_t kLargest = 1 << 16;
    torch::NoGradGuard no_grad;
    std::map<at::ScalarType, std::vector<at::Tensor>> by_type;
    for (const auto& [name, buffer] : unique_parameters(model_->named_buffers()).tensors)
      if (buffer.numel() > 0 && buffer.numel() <= kLargest && buffer.scalar_type() != at::kBool)
        by_type[buffer.scalar_type()].push_back(buffer.detach());
    for (auto& [type, buffers] : by_type) {
      std::vector<at::Tensor> parts;
      for (const at::Tensor& buffer : buffers) parts.push_back(buffer.flatten());
      const at::Tensor flat = at::cat(parts);
      wait(*collectives_.broadcast(flat, 0), control_, "sending running statistics");
      std::int64_t start = 0;
      for (at::Tensor& buffer : buffers) {
        buffer.copy_(flat.narrow(0, start, buffer.numel()).view_as(buffer));
        start += buffer.numel();
      }
    }
  }

  void broadcast_from_rank_zero(TrainableModel& model) {
    torch::NoGradGuard no_grad;
    NamedTensors all = unique_parameters(model.named_parameters()).tensors;
    const NamedTensors buffers = unique_parameters(model.named_buffers()).tensors;
    all.insert(all.end(), buffers.begin(), buffers.end());
    for (auto& [name, tensor] : all) {
      if (tensor.numel() == 0) continue;
      at::Tensor value = tensor.detach().contiguous();
      wait(*collectives_.broadcast(value, 0), control_, "sending rank 0's weights");
      if (!value.is_same(tensor)) tensor.detach().copy_(value);
    }
  }

  Collectives& collectives_;
  Control& control_;
  ReducerOptions options_;
  std::shared_ptr<NormSync> norms_;  // shared: callers know the name of the type only
  TrainableModel* model_ = nullptr;
  std::vector<std::unique_ptr<Reducer>> reducers_;  // by group
};

}  // namespace

void check_same_model(TrainableModel& model, Control& control) {
  const auto blobs = control.all_gather("model shapes",
                                        signature(model.named_parameters(), model.named_buffers()));
  for (std::size_t rank = 1; rank < blobs.size(); ++rank) {
    if (blobs[rank] == blobs[0]) continue;
    const auto ours = split(blobs[0], '\n');
    const auto theirs = split(blobs[rank], '\n');
    std::size_t i = 0;
    while (i < ours.size() && i < theirs.size() && ours[i] == theirs[i]) ++i;
    const auto line = [i](const std::vector<std::string>& lines) {
      return i < lines.size() && !lines[i].empty() ? lines[i] : std::string("nothing");
    };
    throw ConfigError(fmt::format("rank {} built another model than rank 0: rank {} has {}, rank 0 "
                                  "has {}",
                                  rank, rank, line(theirs), line(ours)),
                      "every rank must read the same config, vocabulary and build of tutti");
  }
}

ConfigError unused_parameters_error(int rank, const std::vector<std::string>& missing,
                                    std::size_t total, const std::string& fix) {
  constexpr std::size_t kShown = 20;
  std::string names;
  for (std::size_t i = 0; i < std::min(kShown, missing.size()); ++i) names += "\n    " + missing[i];
  if (missing.size() > kShown) names += fmt::format("\n    and {} more", missing.size() - kShown);
  return ConfigError(fmt::format("rank {}: {} of {} parameters got no gradient in this step:{}",
                                 rank, missing.size(), total, names),
                     fix);
}

std::unique_ptr<Strategy> make_ddp_strategy(Collectives& collectives, Control& control,
                                            const ReducerOptions& options,
                                            std::shared_ptr<NormSync> norms) {
  return std::make_unique<DdpStrategy>(collectives, control, options, std::move(norms));
}

}  // namespace tutti::trainer
