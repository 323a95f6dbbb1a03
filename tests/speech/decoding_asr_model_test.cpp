// The searches with real modules: ESPnet's weights for the decoder and the transducer, a small
// random model behind the Speech2Text facade.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/speech/decoding_vectors.h"
#include "tutti/core/error.h"
#include "tutti/core/random.h"
#include "tutti/speech/decoding/asr_search.h"
#include "tutti/speech/decoding/speech2text.h"
#include "tutti/trainer/out_of_memory.h"

namespace tutti::speech {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

void load(torch::nn::Module& module, const DecodingVectors& vectors, const std::string& prefix) {
  const torch::NoGradGuard no_grad;
  int loaded = 0;
  for (auto& parameter : module.named_parameters()) {
    ASSERT_TRUE(vectors.json["tensors"].contains(prefix + parameter.key())) << parameter.key();
    parameter.value().copy_(vectors.tensor(prefix + parameter.key()));
    ++loaded;
  }
  int stored = 0;
  for (const auto& entry : vectors.json["tensors"].items())
    stored += entry.key().rfind(prefix, 0) == 0 ? 1 : 0;
  ASSERT_EQ(loaded, stored) << prefix;
  module.eval();
}

AsrModel vectors_model(const DecodingVectors& vectors, AsrDecoderKind kind) {
  const Json& config = vectors.json["config"];
  AsrSettings settings;
  settings.vocab_size = config["vocab_size"];
  settings.use_frontend = false;
  settings.input_size = 8;
  settings.encoder.input_size = 8;
  settings.encoder.kind = EncoderKind::kTransformer;
  settings.encoder.positions = PositionKind::kAbsolute;
  settings.encoder.input_layer = "linear";
  settings.encoder.output_size = config["size"];
  settings.encoder.attention_heads = 2;
  settings.encoder.linear_units = 8;
  settings.encoder.num_blocks = 1;
  settings.decoder_kind = kind;
  settings.decoder.vocab_size = settings.predictor.vocab_size = config["vocab_size"];
  settings.decoder.size = config["size"];
  settings.decoder.attention_heads = config["attention_heads"];
  settings.decoder.linear_units = config["linear_units"];
  settings.decoder.num_blocks = config["num_blocks"];
  settings.predictor.hidden_size = config["size"];
  settings.joint.joint_space_size = config["size"];
  settings.sos_id = settings.eos_id = settings.vocab_size - 1;
  AsrModel model(Build{}, settings);
  model->eval();
  return model;
}

TEST(AsrSearch, SameNBestAsEspnetWithItsTransformerDecoder) {
  const DecodingVectors vectors = DecodingVectors::read();
  AsrModel model = vectors_model(vectors, AsrDecoderKind::kAttention);
  load(*model->decoder, vectors, "decoder.");
  load(*model->ctc, vectors, "ctc.");
  const auto memories = vectors.memories();
  Lengths lengths;
  for (const auto& m : memories) lengths.push_back(m.size(0));
  const torch::Tensor memory = torch::nn::utils::rnn::pad_sequence(memories, true, 3.0);
  int compared = 0;
  for (const Json& c : vectors.json["cases"]) {
    if (c["decoder"] != "transformer") continue;
    BeamSearchOptions options{.beam_size = c["beam"], .ctc_weight = c["weight"], .nbest = 10};
    options.penalty = c.value("penalty", 0.0);
    options.maxlenratio = c.value("maxlenratio", 0.0);
    options.minlenratio = c.value("minlenratio", 0.0);
    options.normalize_length = c.value("normalize_length", false);
    options.prompt = c.value("prompt", std::vector<std::int64_t>{});
    const auto results = BeamSearch(search_model(model), options).decode(memory, lengths);
    for (std::size_t u = 0; u < results.size(); ++u) {
      const Json& theirs = c["nbest"][u];
      ASSERT_GE(results[u].nbest.size(), theirs.size());
      for (std::size_t i = 0; i < theirs.size(); ++i, ++compared) {
        const Hypothesis& h = results[u].nbest[i];
        Json shown = c;
        shown.erase("nbest");
        EXPECT_EQ(h.tokens, theirs[i]["tokens"].get<std::vector<std::int64_t>>())
            << shown << " " << u << " " << i;
        const double score = theirs[i]["score"];
        EXPECT_NEAR(h.score, score, 1e-5 * std::abs(score) + 1e-5) << shown;
      }
    }
  }
  EXPECT_GE(compared, 300);
}

TEST(TransducerSearch, SameAsEspnetGreedyAndBeam) {
  const DecodingVectors vectors = DecodingVectors::read();
  AsrModel model = vectors_model(vectors, AsrDecoderKind::kTransducer);
  load(*model->predictor, vectors, "transducer.decoder.");
  load(*model->joint_network, vectors, "transducer.joint_network.");
  const TransducerModel transducer = transducer_model(model);
  const auto memories = vectors.memories();
  Lengths lengths;
  for (const auto& m : memories) lengths.push_back(m.size(0));
  const torch::Tensor memory = torch::nn::utils::rnn::pad_sequence(memories, true, 3.0);
  for (const Json& c : vectors.json["transducer"]) {
    const std::int64_t beam = c["beam"];
    std::vector<std::vector<TransducerHypothesis>> ours(memories.size());
    const auto greedy = transducer_greedy(transducer, memory, lengths);
    for (std::size_t u = 0; u < ours.size(); ++u) {
      // Random weights make the search wide; the shorter utterances say enough.
      if (beam > 1 && lengths[u] > 20) continue;
      if (beam == 1) {
        ours[u] = {greedy[u]};
      } else {
        ours[u] = transducer_beam_search(transducer, memories[u], {.beam_size = beam, .nbest = 5});
      }
      ASSERT_EQ(ours[u].size(), c["nbest"][u].size());
      for (std::size_t i = 0; i < ours[u].size(); ++i) {
        const Json& theirs = c["nbest"][u][i];
        EXPECT_EQ(ours[u][i].tokens, theirs["tokens"].get<std::vector<std::int64_t>>())
            << "beam " << c["beam"];
        EXPECT_NEAR(ours[u][i].score, theirs["score"].get<double>(), 1e-4);
        EXPECT_EQ(ours[u][i].frames.size(), ours[u][i].tokens.size());
      }
    }
  }
}

constexpr int kVocab = 20;

AsrModel small_model(AsrDecoderKind kind) {
  torch::manual_seed(4);
  AsrSettings settings;
  settings.vocab_size = kVocab;
  settings.frontend.n_mels = 16;
  settings.frontend.hop_length = 160;
  settings.encoder.input_size = 16;
  settings.encoder.kind = EncoderKind::kEBranchformer;
  settings.encoder.output_size = 16;
  settings.encoder.attention_heads = 2;
  settings.encoder.linear_units = 16;
  settings.encoder.cgmlp_linear_units = 16;
  settings.encoder.num_blocks = 1;
  settings.encoder.conv_kernel = 5;
  settings.decoder_kind = kind;
  settings.decoder.vocab_size = settings.predictor.vocab_size = kVocab;
  settings.decoder.size = settings.predictor.hidden_size = 16;
  settings.decoder.attention_heads = 2;
  settings.decoder.linear_units = 16;
  settings.decoder.num_blocks = 1;
  settings.sos_id = settings.eos_id = kVocab - 1;
  return AsrModel(Build{}, settings);
}

TextCodec letters() {
  std::vector<std::string> tokens{"<blank>", "<unk>", "<space>"};
  while (static_cast<int>(tokens.size()) < kVocab - 1)
    tokens.emplace_back(1, static_cast<char>('a' + tokens.size()));
  tokens.emplace_back("<sos/eos>");
  return {TokenList(tokens), make_tokenizer({.token_type = "char"})};
}

std::vector<std::vector<float>> noises(const std::vector<std::size_t>& sizes) {
  std::vector<std::vector<float>> out;
  for (std::size_t size : sizes) {
    Random rng({size});
    out.emplace_back(size);
    for (float& sample : out.back()) sample = static_cast<float>(0.1 * rng.normal());
  }
  return out;
}

TEST(Speech2Text, SameWordsInAnyBatchForEveryKindOfModel) {
  const auto waveforms = noises({9000, 100, 16000, 12345, 7000});
  for (AsrDecoderKind kind :
       {AsrDecoderKind::kAttention, AsrDecoderKind::kNone, AsrDecoderKind::kTransducer}) {
    for (std::int64_t beam : {1, 3}) {
      Speech2TextOptions options{
          .beam_size = beam, .ctc_weight = 0.3, .maxlenratio = -8, .nbest = 2, .token_times = true};
      const auto alone = Speech2Text(small_model(kind), letters(), options).decode(waveforms);
      options.batch_size = 4;
      options.batch_seconds = 3;
      const auto together = Speech2Text(small_model(kind), letters(), options).decode(waveforms);
      ASSERT_EQ(alone.size(), waveforms.size());
      for (std::size_t i = 0; i < alone.size(); ++i) {
        ASSERT_EQ(alone[i].nbest.size(), together[i].nbest.size());
        for (std::size_t n = 0; n < alone[i].nbest.size(); ++n) {
          EXPECT_EQ(alone[i].nbest[n].text, together[i].nbest[n].text);
          EXPECT_NEAR(alone[i].nbest[n].score.value_or(1), together[i].nbest[n].score.value_or(1),
                      1e-3);
        }
      }
      EXPECT_EQ(together[1].nbest[0].text, "") << "100 samples are too short for an FFT";
    }
  }
}

TEST(Speech2Text, TimesLieInTheUtteranceInOrder) {
  const auto waveforms = noises({16000});
  Speech2Text recognise(
      small_model(AsrDecoderKind::kAttention), letters(),
      {.beam_size = 2, .ctc_weight = 0.9, .maxlenratio = -5, .token_times = true});
  EXPECT_DOUBLE_EQ(recognise.seconds_per_frame(), 0.04);
  const Recognition best = recognise.decode(waveforms)[0].nbest[0];
  double before = 0;
  for (const TokenSpan& span : best.times) {
    EXPECT_GE(span.begin, before);
    EXPECT_GT(span.end, span.begin);
    EXPECT_LE(span.end, 1.0);
    before = span.end;
  }
}

TEST(Speech2Text, LongFormCoversTheRecordingOnce) {
  const auto waveform = noises({80000})[0];
  Speech2Text recognise(small_model(AsrDecoderKind::kNone), letters(),
                        {.batch_size = 4, .beam_size = 1});
  double end = 0;
  for (const LongSegment& segment : recognise.decode_long(waveform, 2.0, 0.25)) {
    EXPECT_GE(segment.begin, end - 1e-9);
    EXPECT_LE(segment.end, 5.0);
    end = segment.end;
  }
  EXPECT_THROW(recognise.decode_long(waveform, 1.0, 0.5), ConfigError);
  EXPECT_TRUE(recognise.decode_long({}).empty());
}

TEST(Speech2Text, AudioThatIsNotANumberIsRefusedAndTheOthersGoOn) {
  for (AsrDecoderKind kind :
       {AsrDecoderKind::kAttention, AsrDecoderKind::kNone, AsrDecoderKind::kTransducer}) {
    auto waveforms = noises({9000, 9000, 9000});
    waveforms[1][100] = std::nanf("");
    Speech2Text recognise(small_model(kind), letters(),
                          {.batch_size = 4, .beam_size = 3, .ctc_weight = 0.3, .maxlenratio = -8});
    const auto found = recognise.decode(waveforms);
    EXPECT_THAT(found[1].problem, HasSubstr("not a number"));
    for (const std::size_t good : {0, 2}) {
      EXPECT_EQ(found[good].problem, "");
      EXPECT_EQ(found[good].nbest[0].text, recognise.decode({waveforms[good]})[0].nbest[0].text);
    }
  }
}

TEST(Speech2Text, WeightsThatOverflowAreFoundInsideTheModel) {
  for (AsrDecoderKind kind :
       {AsrDecoderKind::kAttention, AsrDecoderKind::kNone, AsrDecoderKind::kTransducer}) {
    AsrModel model = small_model(kind);
    {
      const torch::NoGradGuard no_grad;
      for (auto& weight : model->encoder->parameters()) weight.fill_(std::nanf(""));
    }
    Speech2Text recognise(model, letters(), {.beam_size = 3, .maxlenratio = -8});
    EXPECT_THAT(recognise.decode(noises({9000}))[0].problem, HasSubstr("not finite"));
  }
}

TEST(Speech2Text, TransducerSearchEndsWhenItsOwnWeightsAreNotNumbers) {
  AsrModel model = small_model(AsrDecoderKind::kTransducer);
  {
    const torch::NoGradGuard no_grad;
    for (auto& weight : model->joint_network->parameters()) weight.fill_(std::nanf(""));
  }
  Speech2Text recognise(model, letters(), {.beam_size = 3});
  EXPECT_EQ(recognise.decode(noises({9000}))[0].nbest[0].text, "");
}

TEST(Speech2Text, LongRecordingsGiveTheSameWordsInAnyBatch) {
  const auto waveform = noises({16000 * 9})[0];
  for (const char* cut : {"energy", "plain"}) {
    std::vector<std::string> texts;
    for (const std::size_t batch : {1, 8}) {
      Speech2TextOptions options{.batch_size = batch, .beam_size = 2, .maxlenratio = -8};
      options.cut = cut;
      options.window = 2;
      Speech2Text recognise(small_model(AsrDecoderKind::kAttention), letters(), options);
      const auto found = recognise.decode({waveform})[0];
      EXPECT_EQ(found.nbest.size(), 1U);
      texts.push_back(found.nbest[0].text);
    }
    EXPECT_EQ(texts[0], texts[1]) << cut;
  }
}

TEST(Speech2Text, ABeamLargerThanTheVocabularyIsCut) {
  Speech2Text recognise(small_model(AsrDecoderKind::kAttention), letters(),
                        {.beam_size = 1000, .maxlenratio = -2});
  EXPECT_EQ(recognise.options().beam_size, letters().tokens().size());
}

TEST(Speech2Text, ChecksItsOptions) {
  const auto make = [](Speech2TextOptions options) {
    Speech2Text(small_model(AsrDecoderKind::kAttention), letters(), std::move(options));
  };
  EXPECT_NO_THROW(make({.device = "auto"}));
  EXPECT_THAT([&] { make({.device = "gpu"}); },
              ThrowsMessage<ConfigError>(HasSubstr("device: got 'gpu'")));
  EXPECT_THAT([&] { make({.dtype = "int8"}); }, ThrowsMessage<ConfigError>(HasSubstr("dtype")));
  EXPECT_THAT([&] { make({.ctc_weight = 2}); },
              ThrowsMessage<ConfigError>(HasSubstr("ctc_weight")));
  EXPECT_THAT([&] { make({.lang_sym = "<eng>"}); },
              ThrowsMessage<DataError>(HasSubstr("no token <notimestamps>")));
  EXPECT_THROW(Speech2Text(small_model(AsrDecoderKind::kNone),
                           TextCodec(TokenList({"a"}), make_tokenizer({.token_type = "char"})), {}),
               ConfigError);
}

TEST(Speech2Text, KnowsARealOutOfMemory) {
  try {
    torch::empty({std::int64_t{1} << 50});
    FAIL() << "a petabyte was granted";
  } catch (const std::exception& error) {
    EXPECT_TRUE(trainer::is_out_of_memory(error)) << error.what();
  }
  EXPECT_FALSE(trainer::is_out_of_memory(std::runtime_error("shape mismatch")));
}

}  // namespace
}  // namespace tutti::speech
