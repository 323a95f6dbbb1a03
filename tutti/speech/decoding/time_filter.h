// What may follow in a text of an OWSM model: times come in pairs, rise, and enclose all words; a
// text without times has none at all. ESPnet adds these rules to every search, so a search without
// them finds other words.
//
//   TimeFilter filter({.no_times = 8, .first = 9, .last = 1509, .sos = ..., .eos = ...}, vocab,
//                     prompt, num_utterances, beam, device);
//   scores += filter.bias();                  // 0 or -inf
//   filter.advance(parents_UW, tokens_UW);    // the rows after a step
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

namespace tutti::speech {

struct TimeTokens {
  std::int64_t no_times = 0;         // <notimestamps>
  std::int64_t first = 0, last = 0;  // <0.00> and <30.00>; all times lie between
  std::int64_t sos = 0, eos = 0;
};

class TimeFilter {
 public:
  TimeFilter(const TimeTokens& tokens, std::int64_t vocab_size,
             const std::vector<std::int64_t>& prompt, std::int64_t num_utterances,
             std::int64_t beam, torch::Device device);

  // (1, V) as long as it is the same for all rows, else (N, V); float32.
  torch::Tensor bias() const;
  // Row (u, w) now continues parents[u][w] by tokens[u][w].
  void advance(const torch::Tensor& parents_UW, const torch::Tensor& tokens_UW);
  void select_utterances(const torch::Tensor& index);

 private:
  bool without_times() const { return no_times_bias_.defined(); }
  torch::Tensor is_time(const torch::Tensor& ids) const {
    return (ids >= tokens_.first) & (ids <= tokens_.last);
  }

  TimeTokens tokens_;
  torch::Tensor ids_;            // (1, 1, V)
  torch::Tensor no_times_bias_;  // (1, V), when the prompt says that there are no times
  // (U, W) each: whether <notimestamps> was said, how many times, the last of them, and the newest
  // three tokens, oldest first.
  torch::Tensor said_no_times_, num_times_, last_time_;
  torch::Tensor newest_[3];
};

}  // namespace tutti::speech
