// What searches do by kernels of ours, against the same classes on the CPU.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <memory>

#include "tests/speech/gpu_models.h"
#include "tutti/speech/decoding/beam_search.h"
#include "tutti/speech/decoding/ctc_prefix_score.h"
#include "tutti/speech/ops/gpu/search_step.h"

namespace tutti::speech {
namespace {

class SpeechCudaSearch : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    torch::manual_seed(11);
  }
};

// Every number by itself. What is impossible need only be so: nothing but rounding is left of it.
void expect_near(const torch::Tensor& got, const torch::Tensor& expected, double tolerance) {
  ASSERT_EQ(got.sizes(), expected.sizes());
  ASSERT_EQ(got.scalar_type(), expected.scalar_type());
  ASSERT_FALSE(got.isnan().any().item<bool>());
  constexpr double kImpossible = -1e9;
  const torch::Tensor g = got.cpu().clamp_min(kImpossible), e = expected.clamp_min(kImpossible);
  const torch::Tensor error = (g - e).abs() / e.abs().clamp_min(1);
  EXPECT_LE(error.max().item<double>(), tolerance);
}

struct PrefixCase {
  Lengths lengths;
  std::int64_t vocab, beam, candidates;
  std::int64_t first_frame = 0;
  bool eos_is_blank = false;
};

torch::Tensor ids_below(std::int64_t limit, at::IntArrayRef shape, std::int64_t from = 0) {
  return torch::randint(from, limit, shape, torch::kInt64);
}

TEST_F(SpeechCudaSearch, PrefixScoresEqualTheCpus) {
  const std::vector<PrefixCase> cases = {
      {{40, 17, 33}, 12, 4, 6},
      {{1}, 5, 1, 3},
      {{1, 1, 1}, 5, 3, 4},
      {{2, 3, 1}, 7, 3, 5},
      {{256, 257, 255, 31, 513}, 30, 5, 8},
      {{1500, 700}, 20, 5, 8},
      {{3100}, 9, 2, 4},
      {{50, 9, 20}, 12, 4, 6, /*first_frame=*/3},
      {{2, 30}, 12, 4, 6, /*first_frame=*/5},
      {{60, 41}, 100, 20, 64},
      {{30, 25}, 12, 3, 6, 0, /*eos_is_blank=*/true},
      {Lengths(200, 12), 40, 2, 3},
  };
  for (const PrefixCase& c : cases) {
    const auto count = static_cast<std::int64_t>(c.lengths.size());
    SCOPED_TRACE(::testing::Message() << count << " x " << c.lengths[0] << " beam " << c.beam
                                      << " first " << c.first_frame);
    const std::int64_t eos = c.eos_is_blank ? 0 : c.vocab - 1;
    const torch::Tensor log_probs =
        torch::log_softmax(3 * torch::randn({count, max_length(c.lengths), c.vocab}), -1);
    const CtcPrefixScore::Settings settings{0, eos, eos, c.first_frame};
    CtcPrefixScore cpu(log_probs, c.lengths, c.beam, settings);
    CtcPrefixScore gpu(log_probs.cuda(), c.lengths, c.beam, settings);
    torch::Tensor last = torch::full({count, c.beam}, eos, torch::kInt64);
    for (int step = 0; step < 6; ++step) {
      SCOPED_TRACE(step);
      torch::Tensor candidates =
          ids_below(c.vocab, {last.size(0), c.beam, c.candidates});  // blank and <eos> among them
      candidates.select(2, 0).copy_(last);
      candidates.select(2, 1).fill_(eos);
      candidates.select(2, 2).fill_(0);
      expect_near(gpu.score(candidates.cuda()), cpu.score(candidates), 1e-9);
      expect_near(gpu.score_all(), cpu.score_all(), 1e-9);
      const torch::Tensor parents = ids_below(c.beam, last.sizes());
      const torch::Tensor repeats = torch::rand(last.sizes()) < 0.3;
      const torch::Tensor tokens =
          torch::where(repeats, last.gather(1, parents), ids_below(c.vocab, last.sizes(), 1));
      cpu.advance(parents, tokens);
      gpu.advance(parents.cuda(), tokens.cuda());
      last = tokens;
      if (step == 2 && count > 1) {
        const torch::Tensor keep = torch::tensor({count - 1, std::int64_t{0}}, torch::kInt64);
        cpu.select_utterances(keep);
        gpu.select_utterances(keep.cuda());
        last = last.index_select(0, keep);
      }
    }
  }
}

TEST_F(SpeechCudaSearch, WhatLiesPastTheEndIsNotHeard) {
  const Lengths lengths = {20, 11};
  torch::Tensor log_probs = torch::log_softmax(torch::randn({2, 20, 9}), -1);
  torch::Tensor longer = torch::full({2, 300, 9}, -1.0);
  longer.narrow(1, 0, 20).copy_(log_probs);
  CtcPrefixScore one(log_probs.cuda(), lengths, 3, {0, 8, 8});
  CtcPrefixScore other(longer.cuda(), lengths, 3, {0, 8, 8});
  for (int step = 0; step < 4; ++step) {
    const torch::Tensor candidates = ids_below(9, {2, 3, 5}).cuda();
    EXPECT_TRUE(torch::equal(one.score(candidates), other.score(candidates)));
    const torch::Tensor parents = ids_below(3, {2, 3}).cuda(),
                        tokens = ids_below(8, {2, 3}, 1).cuda();
    one.advance(parents, tokens);
    other.advance(parents, tokens);
  }
}

TEST_F(SpeechCudaSearch, BestTokensAreTorchs) {
  for (const std::int64_t vocab : {7, 300, 5000, 50002})
    for (const std::int64_t count : {1, 7, 31, 64}) {
      if (count > vocab) continue;
      SCOPED_TRACE(::testing::Message() << vocab << " " << count);
      // No two are equal.
      std::vector<torch::Tensor> rows;
      for (int i = 0; i < 5; ++i) rows.push_back(-torch::randperm(vocab).to(torch::kFloat32));
      torch::Tensor x = torch::stack(rows);
      // Most of the best in the part of one thread.
      if (vocab >= 5000) x.slice(1, 3, vocab, 1024) += 2 * vocab;
      const std::int64_t eos = vocab - 1;
      x.index_put_({0, eos}, 4 * vocab);
      ASSERT_TRUE(gpu::can_take_best(x.cuda(), count));
      const auto [values, ids] = x.topk(count, 1);
      const gpu::TopTokens plain = gpu::take_best(x.cuda(), count, std::nullopt);
      EXPECT_TRUE(torch::equal(plain.ids.cpu(), ids));
      EXPECT_TRUE(torch::equal(plain.values.cpu(), values.to(torch::kFloat64)));
      const gpu::TopTokens with_eos = gpu::take_best(x.cuda(), count, eos);
      EXPECT_TRUE(torch::equal(with_eos.ids.narrow(1, 0, count).cpu(), ids));
      EXPECT_TRUE((with_eos.ids.select(1, count) == eos).all().item<bool>());
      const torch::Tensor twice = (ids == eos).any(1);
      EXPECT_TRUE(torch::equal(with_eos.values.select(1, count).cpu(),
                               x.select(1, eos).to(torch::kFloat64).masked_fill(twice, -INFINITY)));
    }
}

TEST_F(SpeechCudaSearch, OfEqualTokensTheFirstIsTaken) {
  torch::Tensor x = torch::full({2, 700}, -INFINITY, torch::kCUDA);
  x.narrow(1, 600, 40).fill_(-1.0);
  const torch::Tensor expected =
      torch::cat({torch::arange(600, 640), torch::arange(0, 10)}).expand({2, -1});
  EXPECT_TRUE(torch::equal(gpu::take_best(x, 50, std::nullopt).ids.cpu(), expected));
}

// Log-probabilities by a hash of all that was said: a row that took another's past is noticed.
class HistoryScorer : public StepScorer {
 public:
  HistoryScorer(torch::Tensor table, std::int64_t beam) : table_(std::move(table)), beam_(beam) {}
  torch::Tensor step(const torch::Tensor& tokens) override {
    const torch::Tensor newest = tokens.dim() == 2 ? tokens.select(1, -1) : tokens;
    if (!history_.defined()) {
      table_ = table_.to(tokens.device());
      history_ = torch::zeros_like(newest);
    }
    history_ = (history_ * 31 + newest + 1).remainder(table_.size(0));
    return table_.index_select(0, history_);
  }
  void reorder(const torch::Tensor& parents) override {
    history_ = history_.index_select(0, parents);
  }
  void select_utterances(const torch::Tensor& utterances) override {
    history_ = history_.view({-1, beam_}).index_select(0, utterances).view({-1});
  }

 private:
  torch::Tensor table_, history_;
  std::int64_t beam_;
};

torch::Tensor history_table(std::int64_t vocab, torch::ScalarType type) {
  torch::Tensor logits = 2 * torch::randn({997, vocab}, torch::kFloat64);
  logits.select(1, vocab - 1) += 1;  // <eos>
  return torch::log_softmax(logits, -1).to(type);
}

SearchModel history_model(std::int64_t vocab, torch::ScalarType type) {
  SearchModel model;
  model.vocab_size = vocab;
  model.sos = model.eos = vocab - 1;
  model.start_decoder = [table = history_table(vocab, type)](const torch::Tensor&, const Lengths&,
                                                             std::int64_t beam) {
    return std::make_unique<HistoryScorer>(table, beam);
  };
  // The same numbers on both.
  model.ctc_log_probs = [](const torch::Tensor& memory) {
    return torch::log_softmax(memory.cpu(), -1).to(memory.device());
  };
  return model;
}

void expect_same_results(const SearchModel& model, const BeamSearchOptions& options,
                         const torch::Tensor& memory, const Lengths& lengths) {
  const BeamSearch search(model, options);
  const auto expected = search.decode(memory, lengths), got = search.decode(memory.cuda(), lengths);
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t u = 0; u < got.size(); ++u) {
    SCOPED_TRACE(u);
    EXPECT_EQ(got[u].num_steps, expected[u].num_steps);
    ASSERT_EQ(got[u].nbest.size(), expected[u].nbest.size());
    for (std::size_t i = 0; i < got[u].nbest.size(); ++i) {
      const Hypothesis &g = got[u].nbest[i], &e = expected[u].nbest[i];
      EXPECT_EQ(g.tokens, e.tokens);
      EXPECT_NEAR(g.score, e.score, 1e-6);
      EXPECT_NEAR(g.decoder_score, e.decoder_score, 1e-6);
      EXPECT_NEAR(g.ctc_score, e.ctc_score, 1e-6);
    }
  }
}

TEST_F(SpeechCudaSearch, BeamSearchFindsWhatTheCpuFinds) {
  const Lengths lengths = {37, 12, 25, 40, 1, 30};
  for (const auto type : {torch::kFloat32, torch::kFloat64})
    for (const std::int64_t vocab : {25, 50, 700}) {
      const SearchModel model = history_model(vocab, type);
      const torch::Tensor memory = 2 * torch::randn({6, 40, vocab});
      for (const double weight : {0.0, 0.3, 1.0})
        for (const std::int64_t beam : {1, 5, 20})
          for (const double maxlenratio : {0.0, 0.4, -6.0})
            for (const double minlenratio : {0.0, 0.2}) {
              SCOPED_TRACE(::testing::Message()
                           << type << " vocab " << vocab << " ctc " << weight << " beam " << beam
                           << " max " << maxlenratio << " min " << minlenratio);
              BeamSearchOptions options{.beam_size = beam, .ctc_weight = weight, .nbest = 5};
              options.maxlenratio = maxlenratio;
              options.minlenratio = minlenratio;
              options.penalty = beam == 5 ? 0.1 : 0.0;
              // As often as the CPU: an utterance that is done goes on otherwise, with nothing alive.
              options.steps_per_check = beam == 20 ? 0 : 1;
              expect_same_results(model, options, memory, lengths);
            }
    }
}

TEST_F(SpeechCudaSearch, BeamSearchKnowsPromptsAndLanguageModels) {
  SearchModel model = history_model(50, torch::kFloat32);
  model.start_lm = [table = history_table(50, torch::kFloat32)](std::int64_t beam) {
    return std::make_unique<HistoryScorer>(table, beam);
  };
  const torch::Tensor memory = 2 * torch::randn({3, 40, 50});
  for (const double lm_weight : {0.0, 0.5})
    for (const double ctc_weight : {0.0, 0.3, 1.0}) {
      SCOPED_TRACE(::testing::Message() << "lm " << lm_weight << " ctc " << ctc_weight);
      BeamSearchOptions options{.beam_size = 4, .ctc_weight = ctc_weight, .nbest = 3};
      options.lm_weight = lm_weight;
      options.prompt = {49, 3, 7, 5};
      expect_same_results(model, options, memory, {40, 21, 9});
    }
}

}  // namespace
}  // namespace tutti::speech
