#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/speech/vectors.h"
#include "tutti/speech/loading/state_dict.h"
#include "tutti/speech/models/transducer.h"

namespace tutti::speech {
namespace {

StateDict part(const std::map<std::string, torch::Tensor>& vectors, const std::string& prefix) {
  StateDict weights;
  for (const auto& [name, tensor] : vectors)
    if (name.starts_with(prefix)) weights[name.substr(prefix.size())] = tensor;
  return weights;
}

TEST(Transducer, PredictorAndJointNetworkGiveWhatEspnetsDo) {
  torch::NoGradGuard no_grad;
  const auto vectors = read_vectors("transducer");
  Predictor predictor(Build{},
                      PredictorSettings{.vocab_size = 7, .num_layers = 2, .hidden_size = 6});
  JointNetwork joint(Build{}, 7, 4, 6, JointSettings{.joint_space_size = 5});
  load_state_dict(*predictor, part(vectors, "w.decoder."), "decoder");
  load_state_dict(*joint, part(vectors, "w.joint_network."), "joint_network");
  predictor->eval();
  const auto predicted = predictor->forward(vectors.at("labels"));
  EXPECT_TRUE(close(predicted, vectors.at("predicted"), 1e-5));
  EXPECT_TRUE(close(joint->forward(vectors.at("encoded").unsqueeze(2), predicted.unsqueeze(1)),
                    vectors.at("joint"), 1e-5));
}

TEST(Transducer, StepsGiveWhatTheWholeSequenceGives) {
  torch::NoGradGuard no_grad;
  for (const std::string kind : {"lstm", "gru", "stateless"}) {
    Predictor predictor(
        Build{},
        PredictorSettings{.kind = kind, .vocab_size = 7, .num_layers = 2, .hidden_size = 6});
    predictor->eval();
    const auto tokens = torch::randint(0, 7, {3, 5}, torch::kInt64);
    const auto whole = predictor->forward(tokens);
    PredictorState state = predictor->initial_state(3);
    for (int u = 0; u < 5; ++u) {
      auto [out, next] = predictor->step(tokens.select(1, u), state);
      EXPECT_TRUE(close(out, whole.select(1, u), 1e-5)) << kind << " " << u;
      state = next;
    }
    const auto rows = torch::tensor({2, 0}, torch::kInt64);
    const auto [picked, unused] =
        predictor->step(tokens.select(1, 4).index_select(0, rows), state.index_select(rows));
    const auto [all, unused_too] = predictor->step(tokens.select(1, 4), state);
    EXPECT_TRUE(close(picked, all.index_select(0, rows), 1e-5)) << kind;
  }
}

}  // namespace
}  // namespace tutti::speech
