#include "tutti/data/io/audio.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/data/fixtures.h"
#include "tutti/data/io/foreign_audio.h"
#include "tutti/data/io/resample.h"
#include "tutti/data/io/sphere.h"

namespace tutti::data {
namespace {

using ::testing::HasSubstr;
using testing::sine;

template <class F>
std::string error_of(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string sphere_file(const std::string& fields, const std::string& data) {
  std::string head = "NIST_1A\n   1024\n" + fields + "end_head\n";
  head.resize(1024, ' ');
  return head + data;
}

TEST(Audio, WavAndFlacRoundTripBitForBit) {
  const Audio original{sine(440, 0.5, 8000), 8000};
  for (const std::string kind : {"wav", "flac"}) {
    const std::string bytes = encode_audio(original, kind);
    const Audio once = decode_audio(bytes, "mem");
    ASSERT_EQ(once.samples.size(), original.samples.size());
    EXPECT_EQ(once.sample_rate, 8000);
    for (std::size_t i = 0; i < once.samples.size(); ++i)
      ASSERT_NEAR(once.samples[i], original.samples[i], 1.0 / 32768);
    EXPECT_EQ(decode_audio(encode_audio(once, kind), "mem").samples, once.samples);
  }
  EXPECT_THROW(encode_audio(original, "opus"), ConfigError);
}

TEST(Audio, SegmentsEqualSlicesOfTheWhole) {
  TempFolder folder;
  write_wav(folder.path() / "a.wav", {sine(300, 2.0, 16000), 16000});
  const Audio whole = read_audio(folder.path() / "a.wav");
  const Audio part = read_audio(folder.path() / "a.wav", {.begin_s = 0.5, .end_s = 1.25});
  EXPECT_EQ(part.samples,
            std::vector<float>(whole.samples.begin() + 8000, whole.samples.begin() + 20000));
  EXPECT_EQ(read_audio(folder.path() / "a.wav", {.begin_s = 1.5, .end_s = 2.3}).samples.size(),
            8000U);  // forgiven
  EXPECT_THAT(
      error_of([&] { read_audio(folder.path() / "a.wav", {.begin_s = 0.5, .end_s = 3.0}); }),
      HasSubstr("segment ends at 3.000 s, the file at 2.000 s"));
  EXPECT_THROW(read_audio(folder.path() / "a.wav", {.begin_s = 2.5}), DataError);
}

TEST(Audio, DamageIsReportedNotReturned) {
  TempFolder folder;
  EXPECT_THROW(read_audio(folder.path() / "absent.wav"), IoError);
  write_file_atomic(folder.path() / "empty.wav", "");
  EXPECT_THAT(error_of([&] { read_audio(folder.path() / "empty.wav"); }),
              HasSubstr("empty.wav: the file is empty"));
  write_file_atomic(folder.path() / "noise.wav", "this is not audio at all, not even close");
  EXPECT_THAT(error_of([&] { read_audio(folder.path() / "noise.wav"); }),
              HasSubstr("noise.wav: not readable as audio"));
  const std::string flac = encode_audio({sine(440, 1, 16000), 16000}, "flac");
  EXPECT_THROW(decode_audio(std::string_view(flac).substr(0, flac.size() / 2), "cut.flac"),
               DataError);
}

TEST(Sphere, ReadsPcmInBothOrdersAndTwoChannels) {
  const std::string fields =
      "sample_count -i 2\nsample_rate -i 16000\nchannel_count -i 2\nsample_n_bytes -i "
      "2\nsample_coding -s3 pcm\n";
  const std::string little = sphere_file(fields + "sample_byte_format -s2 01\n",
                                         std::string("\x00\x40\x00\xC0\x01\x00\xFF\xFF", 8));
  const std::string big = sphere_file(fields + "sample_byte_format -s2 10\n",
                                      std::string("\x40\x00\xC0\x00\x00\x01\xFF\xFF", 8));
  for (const std::string& bytes : {little, big}) {
    EXPECT_EQ(decode_audio(bytes, "x.sph").samples, (std::vector<float>{0.5F, 1.0F / 32768}));
    EXPECT_EQ(decode_audio(bytes, "x.sph", {.channel = 1}).samples,
              (std::vector<float>{-0.5F, -1.0F / 32768}));
    EXPECT_EQ(decode_audio(bytes, "x.sph", {.channel = kMeanOfChannels}).samples,
              (std::vector<float>{0, 0}));
    EXPECT_THAT(error_of([&] { decode_audio(bytes, "x.sph", {.channel = 2}); }),
                HasSubstr("channel 2 asked for, the file has 2"));
  }
}

TEST(Sphere, DecodesMuLawAndALawByTheStandard) {
  const std::string ulaw = sphere_file(
      "sample_count -i 3\nsample_rate -i 8000\nsample_n_bytes -i 1\nsample_coding -s4 ulaw\n",
      std::string("\xFF\x80\x00", 3));
  EXPECT_THAT(decode_audio(ulaw, "u").samples,
              ::testing::ElementsAre(0.0F, 32124.0F / 32768, -32124.0F / 32768));
  const std::string alaw = sphere_file(
      "sample_count -i 2\nsample_rate -i 8000\nsample_n_bytes -i 1\nsample_coding -s4 alaw\n",
      "\xD5\x2A");
  EXPECT_THAT(decode_audio(alaw, "a").samples,
              ::testing::ElementsAre(8.0F / 32768, -32256.0F / 32768));
}

TEST(Sphere, RefusesWhatItCannotRead) {
  const std::string base = "sample_count -i 4\nsample_rate -i 16000\nsample_n_bytes -i 2\n";
  EXPECT_THAT(
      error_of([&] {
        decode_audio(
            sphere_file(base + "sample_coding -s26 pcm,embedded-shorten-v2.00\n", "12345678"), "s");
      }),
      HasSubstr("sph2pipe"));
  EXPECT_THAT(error_of([&] { decode_audio(sphere_file(base, "1234"), "s"); }),
              HasSubstr("cut short: 2 of 4 samples"));
  EXPECT_THROW(decode_audio("NIST_1A\n", "s"), DataError);
  EXPECT_THROW(decode_audio("NIST_1A\n   9999\nend_head\n", "s"), DataError);
  EXPECT_THROW(decode_audio(sphere_file("sample_rate -i 0\n", ""), "s"), DataError);
}

TEST(Resample, KeepsTonesInTheBandAndRemovesThoseAbove) {
  struct Case {
    int from, to;
  };
  for (const Case c : {Case{44100, 16000},
                       {48000, 16000},
                       {8000, 16000},
                       {16000, 8000},
                       {22050, 16000},
                       {16000, 17600}}) {
    const double limit = std::min(c.from, c.to) / 2.0;
    for (const double part : {0.05, 0.4, 0.85}) {
      const auto out = resample(sine(part * limit, 1.0, c.from), c.from, c.to);
      EXPECT_EQ(out.size(), static_cast<std::size_t>(c.to)) << c.from;
      // No delay, no change of level: the same sine at the new rate.
      const auto want = sine(part * limit, 1.0, c.to);
      double worst = 0;
      for (std::size_t i = 400; i + 400 < out.size(); ++i)
        worst = std::max(worst, std::abs(static_cast<double>(out[i]) - want[i]));
      EXPECT_LT(worst, 1e-4) << c.from << "->" << c.to << " at " << part;
    }
    if (c.from <= c.to) continue;
    double loudest = 0;
    const auto gone = resample(sine(1.15 * limit, 1.0, c.from), c.from, c.to);
    for (std::size_t i = 400; i + 400 < gone.size(); ++i)
      loudest = std::max(loudest, std::abs(static_cast<double>(gone[i])));
    EXPECT_LT(loudest, 0.5 * 1e-3) << c.from << "->" << c.to;
  }
}

TEST(Dataset, CombinesAndRefusesDuplicateIds) {
  const auto a = std::make_shared<testing::FakeDataset>(3);
  TempFolder folder;
  write_wav(folder.path() / "x.wav", {sine(440, 0.1, 8000), 8000});
  const auto b = open_manifest(
      parse_jsonl_manifest(R"({"id":"x","audio":"x.wav","text":"ex"})", "m", folder.path()),
      {.sample_rate = 16000});
  const auto both = combine({{"a", a}, {"b", b}});
  EXPECT_EQ(both->size(), 4U);
  EXPECT_EQ(both->uid(3), "x");
  EXPECT_EQ(both->find("x"), 3U);
  const Sample sample = both->read(3);
  EXPECT_EQ(sample.sample_rate, 16000);
  EXPECT_EQ(sample.speech.size(), 1600U);
  EXPECT_EQ(sample.text, "ex");
  EXPECT_THAT(error_of([&] {
                combine({{"one", a}, {"two", std::make_shared<testing::FakeDataset>(1)}});
              }),
              HasSubstr("utterance 'u0' is in dataset 'one' and in dataset 'two'"));
  const auto missing = open_manifest(
      parse_jsonl_manifest(R"({"id":"gone","audio":"nope.wav"})", "m.jsonl", folder.path()));
  EXPECT_THAT(error_of([&] { missing->read(0); }), HasSubstr("m.jsonl: gone: cannot open"));
}

TEST(RealAudio, DigitsAndAn4AreReadWhole) {
  const auto shared = testing::shared_data();
  if (shared.empty()) GTEST_SKIP() << "no shared corpora (set TUTTI_SHARED)";
  TempFolder folder;
  testing::unpack(shared / "mini_an4.tar.gz", folder.path());
  int spheres = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (entry.path().extension() != ".sph") continue;
    const AudioInfo info = audio_info(entry.path());
    const Audio audio = read_audio(entry.path());
    EXPECT_EQ(info.sample_rate, 16000);
    EXPECT_EQ(audio.samples.size(), info.num_frames);
    EXPECT_GT(audio.samples.size(), 8000U);
    float peak = 0;
    for (const float x : audio.samples) peak = std::max(peak, std::abs(x));
    EXPECT_GT(peak, 0.001F);
    EXPECT_LT(peak, 1.0F);
    ++spheres;
  }
  EXPECT_GE(spheres, 8);
  testing::unpack(shared / "fsdd.tar.gz", folder.path());
  int digits = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder.path() / "fsdd" / "recordings")) {
    const Audio audio = read_audio(entry.path(), {.sample_rate = 16000});
    EXPECT_EQ(audio.samples.size(), 2 * audio_info(entry.path()).num_frames);
    if (++digits == 100) break;
  }
}

TEST(AudioProblem, SaysWhatIsWrong) {
  std::vector<float> samples(100, 0.1F);
  EXPECT_EQ(audio_problem(samples), "");
  samples[7] = std::nanf("");
  EXPECT_EQ(audio_problem(samples), "has a sample that is not a number (number 7)");
  samples[7] = -INFINITY;
  EXPECT_EQ(audio_problem(samples), "has a sample that is infinite (number 7)");
  EXPECT_EQ(audio_problem(std::vector<float>(10)), "is silent: every sample is 0");
  EXPECT_EQ(audio_problem({}), "has no samples");
}

TEST(ForeignAudio, IsNamedWithTheCommandThatConvertsIt) {
  const TempFolder folder;
  const std::filesystem::path file = folder.path() / "my talk.m4a";
  write_file_atomic(file, std::string(4, '\0') + "ftypM4A " + std::string(40, '\0'));
  const std::string stem = folder.path().string() + "/my talk";
  EXPECT_EQ(error_of([&] { read_audio(file); }),
            stem + ".m4a: MPEG-4 (m4a, mp4), which is not read here; convert it: ffmpeg -i '" +
                stem + ".m4a' '" + stem + ".wav'");
  EXPECT_EQ(foreign_format("\x1a\x45\xdf\xa3..."), "Matroska (webm, mkv)");
  EXPECT_EQ(foreign_format("RIFF...."), "");
  EXPECT_EQ(foreign_format(""), "");
}

TEST(CutWav, IsRefusedUnlessItsHeaderNeverKnewTheLength) {
  std::string bytes = encode_audio({std::vector<float>(1000, 0.1F), 16000}, "wav");
  const std::string half = bytes.substr(0, 1000);
  try {
    decode_audio(half, "half.wav");
    FAIL();
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("half.wav: cut short"), std::string::npos);
  }
  const auto at = bytes.find("data") + 4;
  bytes.replace(at, 4, "\xff\xff\xff\xff");  // as ffmpeg writes into a pipe
  EXPECT_EQ(decode_audio(bytes, "pipe.wav").samples.size(), 1000U);
}

}  // namespace
}  // namespace tutti::data
