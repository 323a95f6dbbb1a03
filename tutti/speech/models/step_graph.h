// A step that is launched as one: where a GPU has them, the kernels of a step that is repeated with
// the same tensors are recorded once and replayed. One decoder step of a large model is some 500
// small kernels, and launching them one by one takes several times longer than running them.
//
//   StepGraph graph;
//   out = graph.run(device, [&] { return decoder_step(); });   // recorded at the second call
//   graph.forget();                                            // before tensors are replaced
//
// The step must read and write the same tensors each time, decide nothing on the host, and leave
// the host's own state alone. What it returns is overwritten by the next run. Not thread-safe.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>

namespace tutti::speech {

class StepGraph {
 public:
  StepGraph();
  ~StepGraph();
  StepGraph(StepGraph&&) noexcept;
  StepGraph& operator=(StepGraph&&) noexcept;

  torch::Tensor run(const torch::Device& device, const std::function<torch::Tensor()>& step);
  void forget();

 private:
  struct Recording;
  std::unique_ptr<Recording> recording_;
  int runs_ = 0;  // since the last forget()
};

}  // namespace tutti::speech
