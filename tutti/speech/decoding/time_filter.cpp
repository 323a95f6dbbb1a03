#include "tutti/speech/decoding/time_filter.h"

#include <torch/torch.h>

#include <algorithm>
#include <limits>

namespace tutti::speech {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

torch::Tensor as_bias(const torch::Tensor& forbidden) {
  return torch::zeros(forbidden.sizes(), torch::dtype(torch::kFloat32).device(forbidden.device()))
      .masked_fill(forbidden, kNever);
}

}  // namespace

TimeFilter::TimeFilter(const TimeTokens& tokens, std::int64_t vocab_size,
                       const std::vector<std::int64_t>& prompt, std::int64_t num_utterances,
                       std::int64_t beam, torch::Device device)
    : tokens_(tokens) {
  const auto longs = torch::dtype(torch::kInt64).device(device);
  ids_ = torch::arange(vocab_size, longs).view({1, 1, -1});
  if (std::find(prompt.begin(), prompt.end(), tokens.no_times) != prompt.end()) {
    no_times_bias_ = as_bias(is_time(ids_.view({1, -1})));
    return;
  }
  std::int64_t count = 0, last = -1;
  for (const std::int64_t id : prompt) {
    if (id < tokens.first || id > tokens.last) continue;
    ++count;
    last = id;
  }
  const auto filled = [&](std::int64_t value) {
    return torch::full({num_utterances, beam}, value, longs);
  };
  said_no_times_ = torch::zeros({num_utterances, beam}, torch::dtype(torch::kBool).device(device));
  num_times_ = filled(count);
  last_time_ = filled(last);
  for (std::size_t i = 0; i < 3; ++i)
    newest_[i] = filled(prompt.size() + i >= 3 ? prompt[prompt.size() + i - 3] : -1);
}

torch::Tensor TimeFilter::bias() const {
  if (without_times()) return no_times_bias_;
  const auto rows = [](const torch::Tensor& x) { return x.unsqueeze(2); };  // (U, W, 1)
  const torch::Tensor times = is_time(ids_);                                // (1, 1, V)
  const torch::Tensor ends = ids_ == tokens_.eos;
  const torch::Tensor none = rows(said_no_times_);
  const torch::Tensor begin = ~none & rows(newest_[0] == tokens_.sos);
  const torch::Tensor rest = ~none & ~begin;
  const torch::Tensor open = rest & rows(num_times_ % 2 == 1);
  const torch::Tensor closed = rest & ~rows(num_times_ % 2 == 1);
  const torch::Tensor after_time = closed & rows(is_time(newest_[2]));
  // An utterance that has begun must end later than it began, and before the text does.
  torch::Tensor forbidden = open & (ends | (times & (ids_ <= rows(last_time_))));
  forbidden = forbidden | (none & times) | (begin & ~times);
  // After an utterance comes the next, not before its end, or nothing.
  forbidden =
      forbidden | (after_time & ~ends & ((ids_ < rows(newest_[2])) | (ids_ > tokens_.last)));
  forbidden = forbidden | (closed & ~after_time);
  return as_bias(forbidden.view({-1, ids_.size(2)}));
}

void TimeFilter::advance(const torch::Tensor& parents, const torch::Tensor& tokens) {
  if (without_times()) return;
  for (torch::Tensor* state : {&said_no_times_, &num_times_, &last_time_, &newest_[1], &newest_[2]})
    *state = state->gather(1, parents);
  const torch::Tensor timed = is_time(tokens);
  said_no_times_ = said_no_times_ | (tokens == tokens_.no_times);
  num_times_ = num_times_ + timed.to(torch::kInt64);
  last_time_ = torch::where(timed, tokens, last_time_);
  newest_[0] = newest_[1];
  newest_[1] = newest_[2];
  newest_[2] = tokens;
}

void TimeFilter::select_utterances(const torch::Tensor& index) {
  if (without_times()) return;
  for (torch::Tensor* state :
       {&said_no_times_, &num_times_, &last_time_, &newest_[0], &newest_[1], &newest_[2]})
    *state = state->index_select(0, index);
}

}  // namespace tutti::speech
