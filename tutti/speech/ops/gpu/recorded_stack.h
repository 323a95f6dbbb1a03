// Layers that are launched as one: the forward pass and the backward pass of a stack of layers, each
// recorded once per shape as a CUDA graph and launched again and again. A small model's layers take
// longer to launch one by one than to run.
//
//   RecordedStack stack;
//   stack.set_on(true);
//   y = stack.run({x, {mask}}, parameters, [&](const auto& in) { return layers(in); });
//
// Results, gradients and dropped elements are those of `layers` itself, which is called where nothing
// is recorded: without gradients, at the first sight of a shape, while another pass waits for its
// backward pass, and when there are many shapes already. `layers` must compute from its inputs and
// the parameters alone, decide nothing on the host, and leave the host's own state alone.
//
// All recordings lie in the same memory, as one is under way at a time: it is about that of the
// largest. Internal to speech/. Not thread-safe.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace tutti::speech {

class RecordedStack {
 public:
  struct Inputs {
    torch::Tensor x;                    // with a gradient where it wants one
    std::vector<torch::Tensor> others;  // without; each may be undefined, or in the host's memory
  };
  using Layers = std::function<torch::Tensor(const Inputs&)>;

  RecordedStack();
  ~RecordedStack();
  RecordedStack(const RecordedStack&) = delete;
  RecordedStack& operator=(const RecordedStack&) = delete;

  // Off at first. Turned off, recordings are given up with their memory.
  void set_on(bool on);
  bool is_on() const { return on_; }
  // `parameters`: all that layers use; the same ones in every call. Gradients of recorded passes add up
  // in memory of the stack's own, to which the parameters' `grad` is set: who wants to keep it beyond
  // the next pass that finds it undefined keeps a copy.
  torch::Tensor run(const Inputs& inputs, const std::vector<torch::Tensor>& parameters,
                    const Layers& layers);
  // Passes that were launched as one so far.
  std::int64_t num_replays() const { return num_replays_; }

 private:
  struct State;
  std::unique_ptr<State> state_;
  bool on_ = false;
  std::int64_t num_replays_ = 0;
};

}  // namespace tutti::speech
