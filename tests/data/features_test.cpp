#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>

#include "tests/data/fixtures.h"
#include "tutti/core/random.h"
#include "tutti/data/features/fbank.h"
#include "tutti/data/features/statistics.h"
#include "tutti/data/io/npy.h"

namespace tutti::data {
namespace {

// Runs a script with the system's numpy; skips the test where there is none.
CommandResult python(const std::string& script) {
  return run_command({.argv = {TUTTI_PYTHON, "-c", script}});
}
bool have(const std::string& module) { return python("import " + module).ok(); }

TEST(Fft, EqualsTheDefinitionAtEverySizeInEveryLane) {
  Random random({4});
  constexpr std::size_t kLanes = Fft<double>::kLanes;
  for (const std::size_t n : {2U, 4U, 8U, 64U, 128U}) {
    const Fft<double> fft(n);
    std::vector<double> re(n * kLanes), im(n * kLanes), out_re(n * kLanes), out_im(n * kLanes);
    for (std::size_t i = 0; i < re.size(); ++i) re[i] = random.normal(), im[i] = random.normal();
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t l = 0; l < kLanes; ++l) {
        out_re[fft.place(i) * kLanes + l] = re[i * kLanes + l];
        out_im[fft.place(i) * kLanes + l] = im[i * kLanes + l];
      }
    fft.transform(out_re.data(), out_im.data());
    for (std::size_t k = 0; k < n; ++k)
      for (std::size_t l = 0; l < kLanes; ++l) {
        double sr = 0, si = 0;
        for (std::size_t i = 0; i < n; ++i) {
          const double angle = -2 * std::numbers::pi * static_cast<double>(i * k) / n;
          const double x = re[i * kLanes + l], y = im[i * kLanes + l];
          sr += x * std::cos(angle) - y * std::sin(angle);
          si += x * std::sin(angle) + y * std::cos(angle);
        }
        ASSERT_NEAR(out_re[k * kLanes + l], sr, 1e-11) << n << ' ' << k;
        ASSERT_NEAR(out_im[k * kLanes + l], si, 1e-11) << n << ' ' << k;
      }
  }
}

TEST(Convolve, EqualsTheDefinition) {
  Random random({5});
  std::vector<float> a(37), b(11);
  for (float& x : a) x = static_cast<float>(random.normal());
  for (float& x : b) x = static_cast<float>(random.normal());
  const auto got = convolve(a, b);
  ASSERT_EQ(got.size(), 47U);
  for (std::size_t i = 0; i < got.size(); ++i) {
    double want = 0;
    for (std::size_t j = 0; j < b.size(); ++j)
      if (i >= j && i - j < a.size()) want += static_cast<double>(a[i - j]) * b[j];
    EXPECT_NEAR(got[i], want, 1e-5);
  }
}

// A float32 FFT is off by some 1e-7 of the loudest bin, ours as torch's: in quiet bins beside a
// tone that is more than the 1e-5 which holds elsewhere.
TEST(Fbank, IsAsNearToTheDefinitionAsTorchInFloat32) {
  if (!have("torch, numpy")) GTEST_SKIP() << TUTTI_PYTHON " has no torch and numpy to compare with";
  TempFolder folder;
  Random random({9});
  std::vector<float> speech = testing::sine(440, 0.7, 16000, 0.3);
  for (float& x : speech) x += static_cast<float>(0.01 * random.normal());
  write_npy(folder.path() / "x.npy", Array::from(speech));
  struct Case {
    int win, hop, mels;
  };
  for (const Case c : {Case{512, 128, 80}, {400, 160, 80}, {400, 160, 128}}) {
    const std::string script = fmt::format(R"(
import numpy as np, torch
x = torch.from_numpy(np.load('{0}/x.npy')).double()
w = torch.hann_window({1}, dtype=torch.float64)
s = torch.stft(x, 512, hop_length={2}, win_length={1}, window=w, center=True, pad_mode='reflect', normalized=False, onesided=True, return_complex=True)
p = (s.real ** 2 + s.imag ** 2).T.numpy()
def mel(f): return np.where(f < 1000, f * 3 / 200, 15 + np.log(np.maximum(f, 1) / 1000) / (np.log(6.4) / 27))
def hz(m): return np.where(m < 15, m * 200 / 3, 1000 * np.exp(np.log(6.4) / 27 * (m - 15)))
e = hz(np.linspace(mel(np.array(0.0)), mel(np.array(8000.0)), {3} + 2))
f = np.linspace(0, 8000, 257)
r = e[:, None] - f[None]
d = np.diff(e)[:, None]
W = np.maximum(0, np.minimum(-r[:-2] / d[:-1], r[2:] / d[1:])) * (2 / (e[2:] - e[:-2]))[:, None]
out = np.log(np.maximum(p @ W.astype(np.float32).T.astype(np.float64), 1e-10))
np.save('{0}/y.npy', out)
s = torch.stft(x.float(), 512, hop_length={2}, win_length={1}, window=w.float(), center=True, pad_mode='reflect', normalized=False, onesided=True, return_complex=True)
single = torch.log(torch.clamp((s.real ** 2 + s.imag ** 2).T @ torch.from_numpy(W.astype(np.float32).T.copy()), min=1e-10))
np.save('{0}/error.npy', np.abs(single.double().numpy() - out))
)",
                                           folder.path().string(), c.win, c.hop, c.mels);
    const CommandResult result = python(script);
    ASSERT_TRUE(result.ok()) << result.describe();
    const Array want = read_npy(folder.path() / "y.npy");
    const Fbank fbank({.win_length = c.win, .hop_length = c.hop, .n_mels = c.mels});
    const Array got = fbank.compute(speech);
    ASSERT_EQ(got.shape, want.shape);
    EXPECT_EQ(got.shape[0], fbank.num_frames(speech.size()));
    const Array torch_error = read_npy(folder.path() / "error.npy");
    double ours = 0, torchs = 0;
    for (std::int64_t i = 0; i < got.size(); ++i) {
      ours = std::max(ours, std::abs(got.data<float>()[i] - want.data<double>()[i]));
      torchs = std::max(torchs, torch_error.data<double>()[i]);
    }
    EXPECT_LT(ours, std::max(1e-5, 1.5 * torchs));
  }
}

TEST(Fbank, ShortAudioAndBadSettingsAreErrors) {
  const Fbank fbank({});
  EXPECT_THROW(fbank.compute(std::vector<float>(256, 0.0F)), DataError);
  EXPECT_EQ(fbank.compute(std::vector<float>(257, 0.0F)).shape[0], 3);
  EXPECT_THROW(Fbank({.n_fft = 500}), ConfigError);
  EXPECT_THROW(Fbank({.win_length = 600}), ConfigError);
  EXPECT_NE(FbankSettings{}.hash(), FbankSettings{.hop_length = 160}.hash());
}

Array random_feats(std::uint64_t key, std::int64_t frames, std::int64_t dim) {
  Random random({key});
  Array feats = Array::make(DType::kFloat32, {frames, dim});
  for (std::int64_t i = 0; i < feats.size(); ++i)
    feats.data<float>()[i] =
        static_cast<float>(-10 + 5 * random.normal() * std::pow(10, random.uniform(-6, 6)));
  return feats;
}

TEST(ExactSum, IsExactWhateverTheOrder) {
  std::vector<double> values = {1e100, 1.0, -1e100, 1e-30, 3.5, -1.0};
  Random random({1});
  for (int i = 0; i < 50; ++i) {
    random.shuffle(values);
    ExactSum sum;
    for (const double v : values) sum.add(v);
    EXPECT_EQ(sum.value(), 3.5);  // 1e-30 is below half an ulp
  }
}

TEST(Statistics, AnySplitOverWorkersGivesTheSameBits) {
  constexpr int kUtterances = 60;
  Statistics single;
  for (int i = 0; i < kUtterances; ++i)
    single.add(random_feats(static_cast<std::uint64_t>(i), 20 + i, 8));
  for (const int workers : {2, 3, 7}) {
    std::vector<Statistics> parts(static_cast<std::size_t>(workers));
    Random random({static_cast<std::uint64_t>(workers)});
    for (int i = kUtterances; i-- > 0;) {
      // A worker that dies hands its state on as JSON; the next one goes on from there.
      Statistics& part = parts[random.below(parts.size())];
      part.add(random_feats(static_cast<std::uint64_t>(i), 20 + i, 8));
      part = Statistics::from_json(parse_json(to_json_line(part.to_json()), "shard"), "shard");
    }
    Statistics merged;
    for (const Statistics& part : parts) merged.merge(part);
    EXPECT_EQ(merged.count(), single.count());
    EXPECT_EQ(merged.sum(), single.sum());
    EXPECT_EQ(merged.sum_square(), single.sum_square());
  }
  EXPECT_THROW(single.add(random_feats(1, 3, 9)), DataError);
  Array bad = random_feats(1, 3, 8);
  bad.data<float>()[5] = NAN;
  EXPECT_THROW(single.add(bad), DataError);
}

TEST(Statistics, NumpyReadsOurNpzAndWeReadNumpys) {
  if (!have("numpy")) GTEST_SKIP() << "no numpy to compare with";
  TempFolder folder;
  Statistics stats;
  for (int i = 0; i < 5; ++i) stats.add(random_feats(static_cast<std::uint64_t>(i), 10, 4));
  stats.write_npz(folder.path() / "ours.npz");
  const std::string script = fmt::format(R"(
import numpy as np
a = np.load('{0}/ours.npz')
assert sorted(a.files) == ['count', 'sum', 'sum_square'], a.files
assert a['count'].shape == () and a['count'] == 50 and a['sum'].dtype == np.float64 and a['sum'].shape == (4,)
mean = a['sum'] / a['count']
np.savez('{0}/theirs.npz', count=np.int64(50), sum=a['sum'], sum_square=a['sum_square'])
np.savez_compressed('{0}/packed.npz', count=a['count'])
np.save('{0}/f.npy', np.asfortranarray(np.arange(24, dtype=np.int32).reshape(2, 3, 4)))
np.save('{0}/scalar.npy', np.float32(2.5))
np.save('{0}/half.npy', np.zeros(3, np.float16))
)",
                                         folder.path().string());
  const CommandResult result = python(script);
  ASSERT_TRUE(result.ok()) << result.describe();
  const Statistics back = Statistics::read_npz(folder.path() / "theirs.npz");
  EXPECT_EQ(back.count(), 50);
  EXPECT_EQ(back.sum(), stats.sum());
  EXPECT_EQ(back.sum_square(), stats.sum_square());
  const Array cube = read_npy(folder.path() / "f.npy");
  EXPECT_EQ(cube.shape, (std::vector<std::int64_t>{2, 3, 4}));
  for (int i = 0; i < 24; ++i) EXPECT_EQ(cube.data<std::int32_t>()[i], i);
  EXPECT_EQ(to_doubles(read_npy(folder.path() / "scalar.npy")), std::vector<double>{2.5});
  EXPECT_THROW(read_npz(folder.path() / "packed.npz"), DataError);
  EXPECT_THROW(read_npy(folder.path() / "half.npy"), DataError);
}

TEST(Npz, DamageIsFound) {
  TempFolder folder;
  write_npz(folder.path() / "a.npz", {{"x", Array::from(std::vector<float>{1, 2, 3})}});
  const std::string good = read_file(folder.path() / "a.npz");
  EXPECT_EQ(parse_npz(good, "a").at("x").shape, std::vector<std::int64_t>{3});
  int found = 0;
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x20);
    try {
      parse_npz(bad, "a");
    } catch (const DataError&) {
      ++found;
    }
    EXPECT_THROW(parse_npz(std::string_view(good).substr(0, i), "a"), DataError);
  }
  EXPECT_GT(found, static_cast<int>(good.size() / 2));  // dates and the like may differ harmlessly
}

}  // namespace
}  // namespace tutti::data
