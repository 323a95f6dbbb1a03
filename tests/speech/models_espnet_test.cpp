// Every encoder, the decoder, the losses and the gradients against ESPnet's own numbers.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/speech/vectors.h"
#include "tutti/config/load.h"
#include "tutti/speech/models/asr_model.h"
#include "tutti/speech/models/model_config.h"

namespace tutti::speech {
namespace {

class EspnetVectors : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    torch::manual_seed(0);
    vectors_ = read_vectors(GetParam());
    config::Problems problems;
    const auto path = vectors_folder() / (GetParam() + ".yaml");
    AsrSettings settings =
        read_asr_model_block(config::parse_yaml(read_file(path), path.string()), false, problems);
    ASSERT_EQ(problems.describe(), "");
    settings.normalize.kind = NormalizeKind::kNone;
    model_ = AsrModel(Build{}, settings);
    load_weights();
    model_->eval();
  }

  void load_weights() {
    torch::NoGradGuard no_grad;
    std::size_t count = 0;
    const auto load = [&](const std::string& name, torch::Tensor tensor) {
      ASSERT_TRUE(vectors_.contains("w." + name)) << "ESPnet has no " << name;
      ASSERT_EQ(tensor.sizes(), vectors_.at("w." + name).sizes()) << name;
      tensor.copy_(vectors_.at("w." + name));
      ++count;
    };
    for (auto& item : model_->named_parameters()) load(item.key(), item.value());
    for (auto& item : model_->named_buffers()) load(item.key(), item.value());
    const auto is_weight = [](const auto& entry) { return entry.first.starts_with("w."); };
    EXPECT_EQ(count, std::count_if(vectors_.begin(), vectors_.end(), is_weight))
        << "ESPnet has more";
  }

  const torch::Tensor& expected(const std::string& name) { return vectors_.at(name); }

  std::map<std::string, torch::Tensor> vectors_;
  AsrModel model_{nullptr};
};

TEST_P(EspnetVectors, LayersGiveTheSame) {
  torch::NoGradGuard no_grad;
  const auto& x = expected("x");
  const Encoded encoded = model_->encode(x, Lengths(2, x.size(1)));
  EXPECT_TRUE(close(encoded.out, expected("enc"), 1e-5));
  EXPECT_EQ(encoded.lengths, Lengths(2, expected("enc").size(1)));
  EXPECT_TRUE(close(model_->ctc->log_probs(encoded.out), expected("ctc"), 1e-5));
  const auto tokens = torch::constant_pad_nd(expected("text"), {1, 0}, model_->settings().sos_id);
  const auto logits =
      model_->decoder->forward(encoded.out, encoded.lengths, tokens, Lengths(2, tokens.size(1)));
  EXPECT_TRUE(close(logits, expected("dec"), 1e-5));
}

TEST_P(EspnetVectors, LossesAndGradientsAreTheSame) {
  model_->train();
  const auto& x = expected("x");
  const AsrLoss result =
      model_->forward({x, Lengths(2, x.size(1)), expected("text"), Lengths(2, 4)});
  EXPECT_TRUE(close(result.loss, expected("loss"), 1e-5));
  for (const auto& [name, value] : result.stats) {
    if (name == "loss") continue;
    EXPECT_TRUE(close(value, expected(name), 1e-5)) << name;
  }
  result.loss.backward();
  double largest = 0;
  for (const auto& item : model_->named_parameters())
    largest = std::max(largest, expected("g." + item.key()).abs().max().item<double>());
  for (const auto& item : model_->named_parameters()) {
    const auto& want = expected("g." + item.key());
    double scale = std::max(want.abs().max().item<double>(), 1e-3 * largest);
    // A bias in front of BatchNorm has a true gradient of zero: what is there is rounding.
    if (item.key().ends_with("depthwise_conv.bias")) scale = largest;
    // Of the smallest of them float32 leaves four digits: 1.3e-4 with OpenBLAS's kernels for Sandybridge.
    EXPECT_LE((item.value().grad() - want).abs().max().item<double>() / scale, 2e-4) << item.key();
  }
}

// ESPnet's snapshot lets padding leak into short utterances, so the reference is each utterance
// alone.
TEST_P(EspnetVectors, PaddedBatchesGiveWhatEachUtteranceGivesAlone) {
  torch::NoGradGuard no_grad;
  const Lengths lengths = to_lengths(expected("px_lengths"));
  const AsrBatch batch{expected("px"), lengths, expected("ptext"),
                       to_lengths(expected("ptext_lengths"))};
  const Encoded encoded = model_->encode(batch.speech, lengths);
  for (int i = 0; i < 3; ++i) {
    const auto& alone = expected("penc." + std::to_string(i));
    ASSERT_EQ(encoded.lengths[i], alone.size(0));
    EXPECT_TRUE(close(encoded.out[i].narrow(0, 0, alone.size(0)), alone, 1e-5))
        << "utterance " << i;
  }
  // The mean of utterances' losses; with length_normalized_loss a batch weighs them by tokens.
  if (!model_->settings().length_normalized_loss) {
    EXPECT_TRUE(close(model_->forward(batch).loss, expected("ploss"), 1e-5));
  }
}

TEST_P(EspnetVectors, MorePaddingChangesNothingInTrainingEither) {
  model_->train();
  const Lengths lengths = to_lengths(expected("px_lengths"));
  const auto& narrow = expected("px");
  const auto wide = torch::constant_pad_nd(narrow, {0, 0, 0, 37});
  const Encoded a = model_->encoder->forward(narrow, lengths, model_->ctc);
  const Encoded b = model_->encoder->forward(wide, lengths, model_->ctc);
  ASSERT_EQ(a.lengths, b.lengths);
  ASSERT_GT(b.out.size(1), a.out.size(1));
  for (int i = 0; i < 3; ++i) {
    const auto real = [&](const Encoded& e) { return e.out[i].narrow(0, 0, e.lengths[i]); };
    EXPECT_TRUE(close(real(b), real(a), 1e-5)) << "utterance " << i;
  }
}

TEST_P(EspnetVectors, StepsWithCachesGiveWhatTheWholeSequenceGives) {
  torch::NoGradGuard no_grad;
  const Lengths lengths = to_lengths(expected("px_lengths"));
  const Encoded encoded = model_->encode(expected("px"), lengths);
  const std::int64_t beam = 3, utterances = 3, steps = 5,
                     vocabulary = model_->settings().vocab_size;
  const auto tokens = torch::randint(1, vocabulary, {utterances * beam, steps}, torch::kInt64);
  const auto rows = torch::arange(utterances).repeat_interleave(beam);
  Lengths row_lengths;
  for (const auto n : encoded.lengths) row_lengths.insert(row_lengths.end(), beam, n);
  const auto whole =
      torch::log_softmax(model_->decoder->forward(encoded.out.index_select(0, rows), row_lengths,
                                                  tokens, Lengths(9, steps)),
                         -1);

  // Start with a prompt of two tokens, continue one by one, and permute the beams on the way.
  DecoderCache cache = model_->decoder->start(encoded.out, encoded.lengths, beam, /*capacity=*/2);
  EXPECT_TRUE(
      close(model_->decoder->step(tokens.narrow(1, 0, 2), cache), whole.select(1, 1), 1e-5));
  EXPECT_TRUE(close(model_->decoder->step(tokens.select(1, 2), cache), whole.select(1, 2), 1e-5));
  const auto parents = torch::tensor({2, 0, 0, 3, 5, 4, 7, 7, 8}, torch::kInt64);
  cache.reorder(parents);
  const auto moved = tokens.index_select(0, parents);
  EXPECT_TRUE(close(model_->decoder->step(moved.select(1, 3), cache),
                    whole.select(1, 3).index_select(0, parents), 1e-5));
  const auto kept = torch::tensor({2, 0}, torch::kInt64);
  cache.select_utterances(kept);
  const auto kept_rows = torch::tensor({6, 7, 8, 0, 1, 2}, torch::kInt64);
  EXPECT_TRUE(close(model_->decoder->step(moved.select(1, 4).index_select(0, kept_rows), cache),
                    whole.select(1, 4).index_select(0, parents).index_select(0, kept_rows), 1e-5));
}

INSTANTIATE_TEST_SUITE_P(Models, EspnetVectors,
                         ::testing::Values("transformer_conv2d", "transformer_linear",
                                           "conformer_legacy", "conformer_latest",
                                           "conformer_three_heads", "conformer_interctc",
                                           "e_branchformer_rel", "e_branchformer_abs",
                                           "e_branchformer_legacy"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tutti::speech
