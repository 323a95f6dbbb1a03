// One utterance alone on a GPU: an encoder that is launched as one, a decoder's step in a few kernels,
// and what is kept from one utterance to the next.
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <future>

#include "tests/speech/gpu_models.h"
#include "tests/speech/vectors.h"
#include "tutti/speech/decoding/asr_search.h"
#include "tutti/speech/decoding/speech2text.h"

namespace tutti::speech {
namespace {

using SpeechAlone = GpuTest;

constexpr std::int64_t kSize = 256, kVocabulary = 83;

AsrModel make_model(const std::string& encoder = "transformer") {
  AsrModel model = model_from(fmt::format(
      "vocab_size: {}\nencoder: {}\nencoder_conf: {{output_size: {}, attention_heads: 4, "
      "linear_units: 384, num_blocks: 2{}}}\ndecoder: transformer\ndecoder_conf: "
      "{{attention_heads: 4, linear_units: 2304, num_blocks: 3}}\n"
      "model_conf: {{ctc_weight: 0.3}}\nfrontend_conf: {{n_mels: 40}}\n",
      kVocabulary, encoder, kSize, encoder == "conformer" ? ", rel_pos_type: latest" : ""));
  model->eval();
  const torch::NoGradGuard no_grad;
  // Sharper choices, so that the order of the hypotheses does not hang on rounding.
  for (auto& item : model->decoder->named_parameters())
    if (item.key().find("output_layer.weight") != std::string::npos) item.value().mul_(6);
  return model;
}

// On the GPU in `type`, or on the CPU with the same weights.
AsrModel model_in(torch::ScalarType type, torch::Device device) {
  AsrModel model = make_model();
  model->decoder->to(type);
  model->ctc->to(type);
  if (device.is_cpu()) {
    model->decoder->to(torch::kFloat32);
    model->ctc->to(torch::kFloat32);
  }
  model->to(device);
  return model;
}

torch::Tensor seeded_memory(std::int64_t utterances, std::int64_t frames, int seed) {
  torch::manual_seed(seed);
  return torch::randn({utterances, frames, kSize});
}

// Log-probabilities of every step of hypotheses that take each other's places.
std::vector<torch::Tensor> steps(TransformerDecoder decoder, const torch::Tensor& memory,
                                 const Lengths& lengths, std::int64_t beam, std::int64_t prompt) {
  torch::manual_seed(8);
  const std::int64_t rows = memory.size(0) * beam;
  const auto like = decoder->parameters()[0].options();
  DecoderCache cache = decoder->start(memory.to(like), lengths, beam, /*capacity=*/16);
  std::vector<torch::Tensor> out;
  for (int i = 0; i < 20; ++i) {
    const torch::Tensor tokens = torch::randint(
        kVocabulary, i == 0 ? at::IntArrayRef{rows, prompt} : at::IntArrayRef{rows}, torch::kInt64);
    const torch::Tensor parents = torch::randint(beam, {memory.size(0), beam}, torch::kInt64) +
                                  beam * torch::arange(memory.size(0)).unsqueeze(1);
    out.push_back(decoder->step(tokens.to(like.device()), cache).to(torch::kCPU).clone());
    cache.reorder(parents.flatten().to(like.device()));
  }
  decoder->keep(std::move(cache));
  return out;
}

TEST_F(SpeechAlone, StepsOfFewHypothesesAreThoseOfTheCpu) {
  const torch::NoGradGuard no_grad;
  for (const auto type : {torch::kBFloat16, torch::kFloat16})
    for (const auto& [utterances, beam, prompt] :
         {std::tuple{1, 1, 1}, std::tuple{1, 5, 4}, std::tuple{3, 4, 1}, std::tuple{1, 16, 12}}) {
      SCOPED_TRACE(fmt::format("{} {} {} {}", toString(type), utterances, beam, prompt));
      const AsrModel gpu = model_in(type, torch::kCUDA), cpu = model_in(type, torch::kCPU);
      const torch::Tensor memory = seeded_memory(utterances, 70, 3).to(type).to(torch::kFloat32);
      Lengths lengths(static_cast<std::size_t>(utterances), 70);
      lengths.back() = 41;
      const auto expected = steps(cpu->decoder, memory, lengths, beam, prompt);
      const auto got = steps(gpu->decoder, memory, lengths, beam, prompt);
      EXPECT_EQ(cpu->decoder->num_kept(), 0U);
      EXPECT_EQ(gpu->decoder->num_kept(), 1U);
      for (std::size_t i = 0; i < got.size(); ++i)
        EXPECT_LT((got[i] - expected[i]).abs().max().item<double>(), 0.1) << i;
    }
}

// A kept cache has nothing of the utterance before in it, and what it has recorded still holds.
TEST_F(SpeechAlone, KeptStepsGiveWhatNewOnesGive) {
  const torch::NoGradGuard no_grad;
  const AsrModel keeping = model_in(torch::kBFloat16, torch::kCUDA);
  for (int i = 0; i < 4; ++i) {
    SCOPED_TRACE(i);
    const std::int64_t frames = i == 2 ? 40 : 65 + 20 * i;  // all but the third in one size
    const torch::Tensor memory = seeded_memory(1, frames, 30 + i);
    const AsrModel fresh = model_in(torch::kBFloat16, torch::kCUDA);
    const std::int64_t prompt = i == 1 ? 10 : 3;
    const auto expected = steps(fresh->decoder, memory, {frames}, 5, prompt);
    const auto got = steps(keeping->decoder, memory, {frames}, 5, prompt);
    for (std::size_t k = 0; k < got.size(); ++k)
      EXPECT_LT((got[k] - expected[k]).abs().max().item<double>(), 0.02) << k;
  }
  EXPECT_EQ(keeping->decoder->num_kept(), 2U);
}

TEST_F(SpeechAlone, SearchesOneAfterTheOtherFindWhatTheCpuFinds) {
  const torch::NoGradGuard no_grad;
  for (const std::int64_t beam : {1, 5})
    for (const double ctc : {0.0, 0.3}) {
      SCOPED_TRACE(fmt::format("beam {} ctc {}", beam, ctc));
      const BeamSearchOptions options{
          .beam_size = beam, .ctc_weight = ctc, .maxlenratio = -30, .nbest = beam};
      const AsrModel gpu = model_in(torch::kBFloat16, torch::kCUDA),
                     cpu = model_in(torch::kBFloat16, torch::kCPU);
      const BeamSearch on_gpu(search_model(gpu), options), on_cpu(search_model(cpu), options);
      std::vector<std::vector<std::int64_t>> found;
      for (const int seed : {1, 2, 1}) {
        const torch::Tensor memory = seeded_memory(1, 60, seed).to(torch::kBFloat16);
        const auto got = on_gpu.decode(memory.to(torch::kCUDA), {60})[0].nbest;
        const auto expected = on_cpu.decode(memory.to(torch::kFloat32), {60})[0].nbest;
        ASSERT_EQ(got.size(), expected.size());
        ASSERT_FALSE(got.empty());
        // Two tokens that are as good as each other to bf16 may change places.
        EXPECT_NEAR(got[0].score, expected[0].score, 0.3) << seed;
        EXPECT_EQ(got[0].tokens[0], expected[0].tokens[0]) << seed;
        found.push_back(got[0].tokens);
      }
      EXPECT_EQ(found[0], found[2]);
      EXPECT_EQ(gpu->decoder->num_kept(), 1U);
    }
}

TEST_F(SpeechAlone, EncodersThatAreLaunchedAsOneGiveWhatTheirBlocksGive) {
  const torch::NoGradGuard no_grad;
  for (const std::string kind : {"transformer", "conformer", "e_branchformer"}) {
    AsrModel plain = make_model(kind), replaying = make_model(kind);
    plain->to(torch::kCUDA);
    replaying->to(torch::kCUDA);
    replaying->encoder->set_replaying(true);
    torch::manual_seed(2);
    for (const std::int64_t samples : {40000, 40000, 40000, 40000, 31000, 31200, 31100, 40000}) {
      SCOPED_TRACE(fmt::format("{} {}", kind, samples));
      const torch::Tensor speech = 0.1 * torch::randn({1, samples}, torch::kCUDA);
      const Encoded expected = plain->encode(speech, {samples});
      const Encoded got = replaying->encode(speech, {samples});
      EXPECT_EQ(got.lengths, expected.lengths);
      EXPECT_TRUE(close(got.out, expected.out, 1e-4));
    }
    EXPECT_EQ(plain->encoder->num_replayed(), 0);
    EXPECT_EQ(replaying->encoder->num_replayed(), 8);
  }
}

TEST_F(SpeechAlone, EncodersOfABatchPadToFewLengthsAndGiveWhatTheyGaveWithout) {
  const torch::NoGradGuard no_grad;
  for (const auto type : {torch::kFloat32, torch::kBFloat16}) {
    for (const std::string kind : {"transformer", "conformer", "e_branchformer"}) {
      AsrModel plain = make_model(kind), replaying = make_model(kind);
      for (AsrModel& model : {std::ref(plain), std::ref(replaying)}) {
        model->to(torch::kCUDA);
        model->encoder->to(type);
      }
      replaying->encoder->set_replaying(true);
      torch::manual_seed(2);
      // 39900 is padded to what 40000 is, and comes as one launch.
      for (const std::int64_t samples : {40000, 31000, 52345, 40000, 39900, 40000}) {
        SCOPED_TRACE(fmt::format("{} {} {}", kind, samples, torch::toString(type)));
        const torch::Tensor speech = 0.1 * torch::randn({3, samples}, torch::kCUDA);
        const Lengths lengths{samples, samples - 777, samples / 2};
        const Encoded expected = plain->encode(speech, lengths),
                      got = replaying->encode(speech, lengths);
        EXPECT_EQ(got.lengths, expected.lengths);
        ASSERT_EQ(got.out.sizes(), expected.out.sizes());
        for (std::int64_t row = 0; row < 3; ++row) {
          const std::int64_t frames = got.lengths[static_cast<std::size_t>(row)];
          EXPECT_TRUE(close(got.out[row].narrow(0, 0, frames),
                            expected.out[row].narrow(0, 0, frames),
                            type == torch::kFloat32 ? 1e-4 : 0.05));
        }
      }
      EXPECT_EQ(plain->encoder->num_replayed(), 0);
      EXPECT_EQ(replaying->encoder->num_replayed(), 6);
    }
  }
}

TextCodec words() {
  std::vector<std::string> tokens{"<blank>", "<unk>"};
  for (std::int64_t i = 3; i < kVocabulary; ++i) tokens.push_back(fmt::format("t{}", i));
  tokens.emplace_back("<sos/eos>");
  return {TokenList(tokens), make_tokenizer({.token_type = "word"})};
}

Speech2TextOptions search_of(std::size_t batch_size) {
  return {.device = "cuda",
          .batch_size = batch_size,
          .beam_size = 3,
          .ctc_weight = 0.3,
          .maxlenratio = -20};
}

std::vector<float> noise_of(std::int64_t samples) {
  const torch::Tensor noise = 0.1 * torch::randn({samples});
  return {noise.data_ptr<float>(), noise.data_ptr<float>() + noise.numel()};
}

std::vector<Speech2Text::Waveform> spans_of(const std::vector<std::vector<float>>& batch) {
  return {batch.begin(), batch.end()};
}

TEST_F(SpeechAlone, WhatASecondThreadBeginsIsDecodedAsWithoutIt) {
  Speech2Text plain(make_model(), words(), search_of(4)),
      begun(make_model(), words(), search_of(4));
  torch::manual_seed(5);
  std::vector<std::vector<std::vector<float>>> batches;
  for (int b = 0; b < 6; ++b) {
    batches.emplace_back();
    for (int i = 0; i < 4; ++i) batches.back().push_back(noise_of(20000 + 3000 * b + 500 * i));
  }
  std::future<std::shared_ptr<Speech2Text::Heard>> next;
  for (std::size_t b = 0; b < batches.size(); ++b) {
    std::shared_ptr<Speech2Text::Heard> heard = next.valid() ? next.get() : nullptr;
    EXPECT_EQ(heard == nullptr, b == 0);
    if (b + 1 < batches.size())
      next =
          std::async(std::launch::async, [&, b] { return begun.begin(spans_of(batches[b + 1])); });
    const auto got = begun.decode_waveforms(spans_of(batches[b]), heard);
    const auto expected = plain.decode(batches[b]);
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].nbest[0].tokens, expected[i].nbest[0].tokens);
      EXPECT_NEAR(*got[i].nbest[0].score, *expected[i].nbest[0].score, 1e-3);
    }
  }
  const std::vector<float> talk(16000 * 90, 0.1F);  // must be cut
  EXPECT_EQ(begun.begin({Speech2Text::Waveform(talk)}), nullptr);
}

// A second batch in memory must not cost anybody the first.
TEST_F(SpeechAlone, WhereMemoryEndsNothingIsBegunAndEverythingDecoded) {
  torch::manual_seed(5);
  std::vector<std::vector<float>> batch;
  for (int i = 0; i < 48; ++i) batch.push_back(noise_of(400000));
  Speech2Text recognise(make_model(), words(), search_of(48));
  const auto expected = recognise.decode({batch[0], batch[47]});
  c10::cuda::CUDACachingAllocator::emptyCache();
  std::size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  c10::cuda::CUDACachingAllocator::setMemoryFraction(1.0e9 / static_cast<double>(total), 0);
  const auto heard = recognise.begin(spans_of(batch));
  const auto got = recognise.decode_waveforms(spans_of(batch), heard);
  c10::cuda::CUDACachingAllocator::setMemoryFraction(1.0, 0);
  EXPECT_EQ(heard, nullptr);
  EXPECT_FALSE(recognise.can_begin());
  EXPECT_EQ(got[0].nbest[0].tokens, expected[0].nbest[0].tokens);
  EXPECT_EQ(got[47].nbest[0].tokens, expected[1].nbest[0].tokens);
}

}  // namespace
}  // namespace tutti::speech
