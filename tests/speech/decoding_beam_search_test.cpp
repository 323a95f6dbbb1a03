// Against ESPnet's BatchBeamSearch (vectors/decoding_beam.*), and against itself in other batches.
#include "tutti/speech/decoding/beam_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/speech/decoding_vectors.h"
#include "tutti/core/error.h"

namespace tutti::speech {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// Log-probabilities by position and previous token.
class TableScorer : public StepScorer {
 public:
  explicit TableScorer(torch::Tensor table) : table_(std::move(table)) {}
  torch::Tensor step(const torch::Tensor& tokens) override {
    const torch::Tensor rows = tokens.dim() == 2 ? tokens.select(1, -1) : tokens;
    length_ += tokens.dim() == 2 ? tokens.size(1) : 1;
    return table_[std::min(length_, table_.size(0)) - 1].index_select(0, rows);
  }
  void reorder(const torch::Tensor&) override {}
  void select_utterances(const torch::Tensor&) override {}

 private:
  torch::Tensor table_;
  std::int64_t length_ = 0;
};

SearchModel table_model(const DecodingVectors& vectors) {
  SearchModel model;
  const torch::Tensor table = vectors.tensor("table");
  model.start_decoder = [table](const torch::Tensor&, const Lengths&, std::int64_t) {
    return std::make_unique<TableScorer>(table);
  };
  const torch::Tensor weight = vectors.tensor("ctc.ctc_lo.weight"),
                      bias = vectors.tensor("ctc.ctc_lo.bias");
  model.ctc_log_probs = [weight, bias](const torch::Tensor& memory) {
    return torch::log_softmax(torch::nn::functional::linear(memory, weight, bias), -1);
  };
  model.vocab_size = vectors.json["config"]["vocab_size"];
  model.sos = model.eos = model.vocab_size - 1;
  return model;
}

BeamSearchOptions options_of(const Json& c) {
  BeamSearchOptions options{.beam_size = c["beam"], .ctc_weight = c["weight"], .nbest = 10};
  options.penalty = c.value("penalty", 0.0);
  options.maxlenratio = c.value("maxlenratio", 0.0);
  options.minlenratio = c.value("minlenratio", 0.0);
  options.normalize_length = c.value("normalize_length", false);
  options.prompt = c.value("prompt", std::vector<std::int64_t>{});
  return options;
}

struct Batch {
  torch::Tensor memory;
  Lengths lengths;
};

Batch batch_of(const std::vector<torch::Tensor>& memories, double padding = 7.0) {
  Batch batch;
  for (const auto& m : memories) batch.lengths.push_back(m.size(0));
  batch.memory = torch::nn::utils::rnn::pad_sequence(memories, true, padding);
  return batch;
}

void expect_equal(const SearchResult& ours, const Json& theirs, const std::string& what) {
  ASSERT_GE(ours.nbest.size(), theirs.size()) << what;
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    const Hypothesis& h = ours.nbest[i];
    EXPECT_EQ(h.tokens, theirs[i]["tokens"].get<std::vector<std::int64_t>>())
        << what << " hypothesis " << i;
    const double score = theirs[i]["score"];
    EXPECT_NEAR(h.score, score, 1e-5 * std::abs(score) + 1e-5) << what;
    const Json& parts = theirs[i]["scores"];
    if (parts.contains("decoder")) {
      EXPECT_NEAR(h.decoder_score, parts["decoder"].get<double>(), 2e-4) << what;
    }
    if (parts.contains("ctc")) {
      EXPECT_NEAR(h.ctc_score, parts["ctc"].get<double>(), 2e-4) << what;
    }
  }
}

TEST(BeamSearch, SameNBestAsEspnetWithATable) {
  const DecodingVectors vectors = DecodingVectors::read();
  const Batch batch = batch_of(vectors.memories());
  int compared = 0;
  for (const Json& c : vectors.json["cases"]) {
    if (c["decoder"] != "table") continue;
    Json shown = c;
    shown.erase("nbest");
    for (std::int64_t every : {1, 5}) {
      BeamSearchOptions options = options_of(c);
      options.steps_per_check = every;
      const auto results =
          BeamSearch(table_model(vectors), options).decode(batch.memory, batch.lengths);
      ASSERT_EQ(results.size(), batch.lengths.size());
      for (std::size_t u = 0; u < results.size(); ++u, ++compared)
        expect_equal(results[u], c["nbest"][u], shown.dump() + " utterance " + std::to_string(u));
    }
  }
  EXPECT_GE(compared, 100);
}

TEST(BeamSearch, AnyBatchGivesTheSameResult) {
  const DecodingVectors vectors = DecodingVectors::read();
  const auto memories = vectors.memories();
  for (double weight : {0.0, 0.3, 1.0}) {
    const BeamSearch search(table_model(vectors),
                            {.beam_size = 4, .ctc_weight = weight, .nbest = 4});
    const Batch all = batch_of(memories, -3.0);
    const auto together = search.decode(all.memory, all.lengths);
    for (std::size_t u = 0; u < memories.size(); ++u) {
      const auto alone = search.decode(memories[u].unsqueeze(0), {memories[u].size(0)});
      ASSERT_EQ(alone[0].nbest.size(), together[u].nbest.size());
      for (std::size_t i = 0; i < alone[0].nbest.size(); ++i) {
        EXPECT_EQ(alone[0].nbest[i].tokens, together[u].nbest[i].tokens);
        EXPECT_NEAR(alone[0].nbest[i].score, together[u].nbest[i].score, 1e-6);
      }
    }
  }
}

// A wide beam without CTC is exhaustive on a small vocabulary.
TEST(BeamSearch, WideBeamFindsTheBestOfAllSentences) {
  torch::manual_seed(3);
  const std::int64_t vocab = 4, longest = 4;
  const torch::Tensor table = torch::log_softmax(torch::randn({longest, vocab, vocab}), -1);
  SearchModel model;
  model.vocab_size = vocab;
  model.sos = model.eos = vocab - 1;
  model.start_decoder = [&](const torch::Tensor&, const Lengths&, std::int64_t) {
    return std::make_unique<TableScorer>(table);
  };
  const auto a = table.accessor<float, 3>();
  double best = -1e9;
  std::vector<std::int64_t> best_tokens, tokens;
  const std::function<void(double, std::int64_t)> walk = [&](double score, std::int64_t last) {
    const auto i = static_cast<std::int64_t>(tokens.size());
    if (i == longest) {  // <eos> is forced for free
      if (score > best) best = score, best_tokens = tokens;
      return;
    }
    const double end = score + a[i][last][vocab - 1];
    if (end > best) best = end, best_tokens = tokens;
    for (std::int64_t v = 0; v < vocab - 1; ++v) {
      tokens.push_back(v);
      walk(score + a[i][last][v], v);
      tokens.pop_back();
    }
  };
  walk(0, vocab - 1);
  // The widest beam the vocabulary allows is 4: enough here, where scores are first order.
  const BeamSearch search(model, {.beam_size = 4, .ctc_weight = 0.0, .maxlenratio = -4});
  const auto result = search.decode(torch::zeros({1, 10, 2}), {10});
  EXPECT_EQ(result[0].nbest[0].tokens, best_tokens);
  EXPECT_NEAR(result[0].nbest[0].score, best, 1e-5);
}

TEST(BeamSearch, MinlenratioIsLoweredUntilSomethingEnds) {
  const DecodingVectors vectors = DecodingVectors::read();
  const Batch batch = batch_of(vectors.memories());
  const BeamSearch search(
      table_model(vectors),
      {.beam_size = 3, .ctc_weight = 0.3, .maxlenratio = 0.2, .minlenratio = 0.9});
  for (const SearchResult& result : search.decode(batch.memory, batch.lengths))
    EXPECT_FALSE(result.nbest.empty());
}

TEST(BeamSearch, OptionsAreChecked) {
  const DecodingVectors vectors = DecodingVectors::read();
  const SearchModel model = table_model(vectors);
  EXPECT_THROW(BeamSearch(model, {.beam_size = 0}), ConfigError);
  EXPECT_THROW(BeamSearch(model, {.beam_size = 100}), ConfigError);
  EXPECT_THROW(BeamSearch(model, {.beam_size = 2, .ctc_weight = 1.5}), ConfigError);
  SearchModel no_ctc = model;
  no_ctc.ctc_log_probs = nullptr;
  EXPECT_THAT([&] { BeamSearch(no_ctc, {.beam_size = 2, .ctc_weight = 0.3}); },
              ThrowsMessage<ConfigError>(HasSubstr("set ctc_weight: 0.0")));
  EXPECT_TRUE(BeamSearch(model, {.beam_size = 2}).decode(torch::zeros({0, 1, 1}), {}).empty());
}

}  // namespace
}  // namespace tutti::speech
