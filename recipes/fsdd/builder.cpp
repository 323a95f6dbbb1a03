// The Free Spoken Digit Dataset: isolated digits of several speakers. The last speaker by name (or
// `test_speaker`) is never heard in training. `num_synthetic` digits by synthetic voices may be
// added to training's few people. noise.scp lists noises for augmentation.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "tutti/config/plugin.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/random.h"
#include "tutti/core/text.h"
#include "tutti/data/io/audio.h"
#include "tutti/systems/builders/archives.h"

#include "../digits/numbers.h"
#include "../digits/voices.h"

namespace tutti::recipes {
namespace {

using systems::manifest_path;
using systems::write_manifest;

namespace fs = std::filesystem;

// Four recordings of noise for augmentation, made from nothing and from training's own speakers:
// white, pink, hum, and babble (many utterances at once).
void write_noises(const fs::path& data_dir, const std::vector<Json>& train) {
  constexpr int kRate = 8000;
  constexpr std::size_t kSamples = 10 * kRate;
  make_folders(data_dir / "noise");
  std::string scp;
  const auto write = [&](const std::string& name, std::vector<float> samples) {
    float peak = 1e-9F;
    for (const float x : samples) peak = std::max(peak, std::abs(x));
    for (float& x : samples) x *= 0.5F / peak;
    const fs::path file = data_dir / "noise" / (name + ".wav");
    data::write_wav(file, {.samples = std::move(samples), .sample_rate = kRate});
    scp += name + " noise/" + name + ".wav\n";  // beside noise.scp: the folder may move
  };
  Random rng({hash64("fsdd noise")});
  std::vector<float> white(kSamples);
  std::vector<float> pink(kSamples);
  std::vector<float> hum(kSamples);
  std::vector<float> babble(kSamples, 0.0F);
  double slow = 0;
  for (std::size_t i = 0; i < kSamples; ++i) {
    white[i] = static_cast<float>(rng.uniform(-1, 1));
    slow = 0.95 * slow + rng.uniform(-1, 1);  // falls with frequency, as rooms and fans do
    pink[i] = static_cast<float>(slow);
    const double t = static_cast<double>(i) / kRate;
    for (int harmonic = 1; harmonic <= 5; ++harmonic)
      hum[i] += static_cast<float>(std::sin(2 * std::numbers::pi * 50 * harmonic * t) / harmonic);
  }
  for (int voice = 0; voice < 150 && !train.empty(); ++voice) {
    const auto& utterance = train[rng.below(train.size())];
    const auto speech = data::read_audio(data_dir / utterance.at("audio").get<std::string>(),
                                         {.sample_rate = kRate});
    std::size_t at = rng.below(kSamples);
    for (const float x : speech.samples) babble[at++ % kSamples] += x;
  }
  write("white", std::move(white));
  write("pink", std::move(pink));
  write("hum", std::move(hum));
  write("babble", std::move(babble));
  write_file_atomic(data_dir / "noise.scp", scp);
}

// Digits by voices nobody recorded here, a third by flite's, at the recordings' sample rate and
// without the silence around them.
std::vector<Json> speak_digits(const fs::path& data_dir, std::size_t count) {
  make_folders(data_dir / "synthetic");
  std::vector<Json> utterances(count);
  systems::for_each_parallel("speaking digits", count, [&](std::size_t i) {
    Random rng({hash64("fsdd voices"), i});
    const std::string digit(1, static_cast<char>('0' + i % 10)), text = digits_in_words(digit);
    const std::string id = fmt::format("synthetic_{:05}", i);
    const fs::path wav = data_dir / "synthetic" / (id + ".wav");
    const bool by_flite = i / 10 % 3 == 0;
    const auto& voices = by_flite ? flite_voices() : training_variants();
    const std::string voice = voices[rng.below(voices.size())];
    (by_flite ? speak_with_flite : speak_with_espeak)(text, voice, rng, wav);
    data::Audio audio = data::read_audio(wav, {.sample_rate = 8000});
    const auto loud = [](float x) { return std::abs(x) > 0.01F; };
    auto& samples = audio.samples;
    samples.erase(std::find_if(samples.rbegin(), samples.rend(), loud).base(), samples.end());
    samples.erase(samples.begin(), std::find_if(samples.begin(), samples.end(), loud));
    data::write_wav(wav, audio);
    utterances[i] = {
        {"id", id}, {"audio", "synthetic/" + id + ".wav"}, {"text", text}, {"speaker", voice}};
  });
  return utterances;
}

struct FsddSettings {
  std::string source;
  std::string test_speaker;
  std::uint64_t num_synthetic = 0;
};

class FsddBuilder final : public systems::DatasetBuilder {
 public:
  explicit FsddBuilder(FsddSettings settings) : settings_(std::move(settings)) {}
  std::vector<std::string> splits() const override { return {"train", "valid", "test"}; }

  void build(const systems::BuildContext& context) const override {
    make_folders(context.data_dir);
    const fs::path source = systems::unpacked_source(
        context, settings_.source,
        "put fsdd.tar.gz (github.com/Jakobovski/free-spoken-digit-dataset, or a checkout of it) "
        "beside conf/, or "
        "name it there",
        {"fsdd.tar.gz", "free-spoken-digit-dataset", "../../../shared/data/fsdd.tar.gz"});
    std::map<std::string, std::vector<Json>> by_speaker;
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(source))
      if (entry.path().extension() == ".wav") files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const auto& file : files) {
      const auto parts = split(file.stem().string(), '_');  // "7_jackson_32"
      if (parts.size() != 3 || parts[0].size() != 1 ||
          !std::isdigit(static_cast<unsigned char>(parts[0][0])))
        continue;
      by_speaker[parts[1]].push_back({{"id", parts[1] + "_" + parts[0] + "_" + parts[2]},
                                      {"audio", fs::relative(file, context.data_dir).string()},
                                      {"text", digits_in_words(parts[0])},
                                      {"speaker", parts[1]}});
    }
    if (by_speaker.size() < 2)
      throw DataError(fmt::format("{}: found {} speakers, expected at least 2", source.string(),
                                  by_speaker.size()),
                      "recordings are named DIGIT_SPEAKER_NUMBER.wav");
    const std::string held_out =
        settings_.test_speaker.empty() ? by_speaker.rbegin()->first : settings_.test_speaker;
    if (!by_speaker.contains(held_out))
      throw DataError("no recordings of test_speaker " + held_out);
    std::vector<Json> train;
    std::vector<Json> valid;
    for (const auto& [speaker, utterances] : by_speaker) {
      if (speaker == held_out) continue;
      for (std::size_t i = 0; i < utterances.size(); ++i)
        (i % 20 == 7 ? valid : train).push_back(utterances[i]);
    }
    const std::vector<Json> synthetic = speak_digits(context.data_dir, settings_.num_synthetic);
    const std::vector<Json> people = train;
    train.insert(train.end(), synthetic.begin(), synthetic.end());
    // Files are ordered by digit and speaker; batches are cut from the order of the manifest.
    Random rng({hash64("fsdd order")});
    for (std::size_t i = train.size(); i > 1; --i) std::swap(train[i - 1], train[rng.below(i)]);
    write_noises(context.data_dir, people);
    write_manifest(manifest_path(context.data_dir, "valid"), valid);
    write_manifest(manifest_path(context.data_dir, "test"), by_speaker[held_out]);
    write_manifest(manifest_path(context.data_dir, "train"), train);
  }

 private:
  FsddSettings settings_;
};

}  // namespace

TUTTI_PLUGIN(registry) {
  using S = FsddSettings;
  config::Schema<S> schema("fsdd", "The Free Spoken Digit Dataset.");
  schema.field("source", &S::source, "archive, or folder with DIGIT_SPEAKER_NUMBER.wav");
  schema.field("test_speaker", &S::test_speaker,
               "who is never heard in training; empty: the last by name");
  schema.field("num_synthetic", &S::num_synthetic, "digits by synthetic voices in training");
  registry.add<systems::DatasetBuilder>(
      schema, [](const S& settings) { return std::make_unique<FsddBuilder>(settings); });
}

}  // namespace tutti::recipes
