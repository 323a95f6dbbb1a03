#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>

#include "tests/speech/vectors.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/data/io/npy.h"
#include "tutti/speech/frontend/log_mel.h"
#include "tutti/speech/frontend/normalize.h"
#include "tutti/speech/frontend/spec_augment.h"

namespace tutti::speech {
namespace {

data::Array to_array(const torch::Tensor& tensor) {
  const auto dtype = tensor.scalar_type() == torch::kInt64     ? data::DType::kInt64
                     : tensor.scalar_type() == torch::kFloat64 ? data::DType::kFloat64
                                                               : data::DType::kFloat32;
  data::Array array = data::Array::make(dtype, tensor.sizes().vec());
  if (array.num_bytes() > 0)
    std::memcpy(array.bytes.get(), tensor.contiguous().data_ptr(), array.num_bytes());
  return array;
}

TEST(LogMel, GivesEspnetsFeaturesForEveryUtteranceOfAPaddedBatch) {
  auto vectors = read_vectors("frontend");
  LogMel frontend(Build{}, LogMelSettings{.win_length = 400, .hop_length = 160});
  EXPECT_TRUE(close(frontend->named_buffers()["logmel.melmat"], vectors["melmat"], 1e-6));
  const Lengths lengths = to_lengths(vectors["lengths"]);
  const Features features = frontend->forward(vectors["speech"], lengths);
  for (int i = 0; i < 2; ++i) {
    const auto& alone = vectors["feats." + std::to_string(i)];
    ASSERT_EQ(features.lengths[i], alone.size(0));
    EXPECT_EQ(features.lengths[i], lengths[i] / 160 + 1);
    EXPECT_TRUE(close(features.values[i].narrow(0, 0, alone.size(0)), alone, 1e-5)) << i;
  }
  EXPECT_EQ(features.values[1]
                .narrow(0, features.lengths[1], features.lengths[0] - features.lengths[1])
                .abs()
                .max()
                .item<float>(),
            0);
}

TEST(LogMel, TakesTheFirstChannelInEvaluation) {
  LogMel frontend(Build{}, LogMelSettings{});
  frontend->eval();
  const auto speech = torch::randn({2, 3000, 2});
  const auto both = frontend->forward(speech, {3000, 3000});
  const auto first = frontend->forward(speech.select(2, 0), {3000, 3000});
  EXPECT_TRUE(torch::equal(both.values, first.values));
}

TEST(LogMel, SaysWhichUtteranceIsTooShort) {
  LogMel frontend(Build{}, LogMelSettings{});
  try {
    frontend->forward(torch::zeros({2, 1000}), {1000, 100});
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("utterance 1 of the batch has 100 samples"),
              std::string::npos);
  }
}

TEST(Normalize, GlobalStatisticsComeFromSumsAndLeavePaddingZero) {
  const TempFolder folder;
  const auto frames = torch::randn({50, 4}, torch::kFloat64) * 3 + 1;
  data::write_npz(folder.path() / "s.npz",
                  {{"count", to_array(torch::tensor(50, torch::kInt64))},
                   {"sum", to_array(frames.sum(0).to(torch::kFloat32))},
                   {"sum_square", to_array(frames.square().sum(0).to(torch::kFloat32))}});
  Normalize normalize(
      Build{},
      NormalizeSettings{.kind = NormalizeKind::kGlobal, .stats_file = folder.path() / "s.npz"}, 4);
  const Features out = normalize->forward({frames.to(torch::kFloat32).view({1, 50, 4}), {50}});
  EXPECT_LT(out.values.mean(1).abs().max().item<double>(), 1e-4);
  EXPECT_TRUE(close(out.values.std(1, /*unbiased=*/false), torch::ones({1, 4}), 1e-4));
  const Features padded = normalize->forward({torch::ones({1, 5, 4}), {3}});
  EXPECT_EQ(padded.values.narrow(1, 3, 2).abs().max().item<float>(), 0);
  EXPECT_EQ(normalize->named_buffers().size(), 2U);
}

TEST(Normalize, UtteranceMeansIgnorePadding) {
  Normalize normalize(Build{},
                      NormalizeSettings{.kind = NormalizeKind::kUtterance, .norm_vars = false}, 3);
  auto x = torch::randn({2, 6, 3});
  const auto alone = normalize->forward({x.narrow(0, 1, 1).narrow(1, 0, 4).contiguous(), {4}});
  x[1].narrow(0, 4, 2).fill_(9);
  const auto batch = normalize->forward({x, {6, 4}});
  EXPECT_TRUE(close(batch.values[1].narrow(0, 0, 4), alone.values[0], 1e-6));
}

TEST(Npz, SurvivesARoundTripAndRefusesDamage) {
  const TempFolder folder;
  const auto path = folder.path() / "a.npz";
  const auto a = torch::randn({3, 5});
  data::write_npz(path, {{"a", to_array(a)},
                         {"n", to_array(torch::tensor(7, torch::kInt64))},
                         {"empty", to_array(torch::empty({0}, torch::kFloat64))}});
  const auto read = data::read_npz(path);
  EXPECT_TRUE(torch::equal(torch::from_blob(read.at("a").bytes.get(), read.at("a").shape), a));
  EXPECT_EQ(read.at("n").data<std::int64_t>()[0], 7);
  EXPECT_EQ(read.at("n").shape.size(), 0U);
  EXPECT_EQ(read.at("empty").size(), 0);
  std::string bytes = read_file(path);
  for (std::size_t i = 0; i < bytes.size(); ++i) {  // any damage is a DataError, or does not matter
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x55);
    std::ofstream(folder.path() / "b.npz", std::ios::binary) << damaged;
    try {
      data::read_npz(folder.path() / "b.npz");
    } catch (const DataError&) {
      continue;
    }
  }
  bytes[bytes.find("NUMPY") + 140] ^= 1;
  write_file_atomic(path, bytes);
  EXPECT_THROW(data::read_npz(path), DataError);
  write_file_atomic(path, bytes.substr(0, bytes.size() / 2));
  EXPECT_THROW(data::read_npz(path), DataError);
  EXPECT_THROW(data::read_npz(folder.path() / "absent.npz"), IoError);
}

TEST(SpecAugment, WarpsLikeTorchsBicubicInterpolation) {
  const auto x = torch::randn({2, 40, 5});
  const auto warped =
      time_warp(x, torch::tensor({40, 31}, torch::kInt64), torch::tensor({17, 12}, torch::kInt64),
                torch::tensor({20, 9}, torch::kInt64));
  const auto piece = [](const torch::Tensor& part, std::int64_t length) {
    return torch::upsample_bicubic2d(part.view({1, 1, part.size(0), part.size(1)}),
                                     {length, part.size(1)}, false)
        .view({length, part.size(1)});
  };
  const auto first =
      torch::cat({piece(x[0].narrow(0, 0, 17), 20), piece(x[0].narrow(0, 17, 23), 20)});
  EXPECT_TRUE(close(warped[0], first, 1e-5));
  const auto second =
      torch::cat({piece(x[1].narrow(0, 0, 12), 9), piece(x[1].narrow(0, 12, 19), 22)});
  EXPECT_TRUE(close(warped[1].narrow(0, 0, 31), second, 1e-5));
  EXPECT_TRUE(torch::equal(warped[1].narrow(0, 31, 9), x[1].narrow(0, 31, 9)));
}

TEST(SpecAugment, MasksStayWithinTheirWidths) {
  torch::manual_seed(5);
  SpecAugmentSettings settings{.apply_time_warp = false,
                               .freq_mask_width_range = {0, 8},
                               .num_freq_mask = 1,
                               .time_mask_width_ratio_range = std::pair{0.0, 0.1},
                               .num_time_mask = 2};
  const Features out = spec_augment({torch::ones({64, 100, 40}), Lengths(64, 100)}, settings);
  const auto masked_bins = (out.values.amax(1) == 0).sum(1),
             masked_frames = (out.values.amax(2) == 0).sum(1);
  EXPECT_LE(masked_bins.max().item<int>(), 7);
  EXPECT_GT(masked_bins.max().item<int>(), 0);
  EXPECT_LE(masked_frames.max().item<int>(), 18);
  EXPECT_GT(masked_frames.max().item<int>(), 9);  // two stripes, so more than one can cover
  const auto again = spec_augment({torch::ones({64, 100, 40}), Lengths(64, 100)}, settings);
  EXPECT_FALSE(torch::equal(out.values, again.values));
}

TEST(SpecAugment, LeavesUtterancesTooShortToWarpAlone) {
  SpecAugmentSettings settings{.apply_freq_mask = false, .apply_time_mask = false};
  torch::manual_seed(1);  // one warp in ten moves nothing
  const auto x = torch::randn({2, 30, 4});
  const Features out = spec_augment({x, {30, 9}}, settings);
  EXPECT_TRUE(torch::equal(out.values[1], x[1]));
  EXPECT_FALSE(torch::equal(out.values[0], x[0]));
}

}  // namespace
}  // namespace tutti::speech
