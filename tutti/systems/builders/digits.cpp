// The demo corpus: spoken numbers made from what Debian offers. espeak-ng speaks them in many
// voices, and sequences of real recordings (Debian's asterisk-core-sounds-en-wav, one woman's
// voice) stand beside them. Voices of `test_voices` are never heard in training. `test_human` holds
// digit sequences that training does not, spoken by the recorded voice (each word was recorded
// once, so its words, not its sequences, are known from training).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/random.h"
#include "tutti/data/io/audio.h"
#include "tutti/systems/builders/numbers.h"
#include "tutti/systems/builders/voices.h"
#include "tutti/systems/dataset_builder.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

struct DigitsSettings {
  int num_train = 1600;
  int num_valid = 100;
  int num_test = 120;
  int num_human = 240;  // sequences of recordings in training; a quarter as many in test_human
  std::uint64_t seed = 0;
  std::string human_dir = "/usr/share/asterisk/sounds/en_US_f_Allison/digits";
};

DigitsSettings read_settings(const config::Node& node) {
  DigitsSettings s;
  s.num_train = node["num_train"].value_or(s.num_train);
  s.num_valid = node["num_valid"].value_or(s.num_valid);
  s.num_test = node["num_test"].value_or(s.num_test);
  s.num_human = node["num_human"].value_or(s.num_human);
  s.seed = node["seed"].value_or(s.seed);
  s.human_dir = node["human_dir"].value_or(s.human_dir);
  return s;
}

// Half plain numbers of up to four digits, half digit strings.
std::string random_text(Random& rng) {
  if (rng.below(2) == 0) {
    static constexpr std::array<int, 4> kLimits = {10, 100, 1000, 10000};
    return number_in_words(
        static_cast<int>(rng.below(static_cast<std::uint64_t>(kLimits[rng.below(4)]))));
  }
  std::string digits;
  for (std::uint64_t n = 1 + rng.below(5); n > 0; --n)
    digits += static_cast<char>('0' + rng.below(10));
  return digits_in_words(digits);
}

class DigitsBuilder final : public DatasetBuilder {
 public:
  std::vector<std::string> splits() const override {
    return {"train", "valid", "test_voices", "test_human"};
  }

  void build(const BuildContext& context) const override {
    const DigitsSettings settings = read_settings(context.options);
    if (!fs::exists(settings.human_dir))
      throw DataError("no recordings in " + settings.human_dir,
                      "install asterisk-core-sounds-en-wav, or set human_dir");
    make_folders(context.data_dir / "wav");
    auto train = speak(context, settings, "train", settings.num_train, training_variants());
    std::set<std::string> used;
    const auto human = join_recordings(context, settings, "human_train", settings.num_human, used);
    train.insert(train.end(), human.begin(), human.end());
    write_manifest(manifest_path(context.data_dir, "valid"),
                   speak(context, settings, "valid", settings.num_valid, training_variants()));
    write_manifest(manifest_path(context.data_dir, "test_voices"),
                   speak(context, settings, "test_voices", settings.num_test, test_variants()));
    write_manifest(manifest_path(context.data_dir, "test_human"),
                   join_recordings(context, settings, "test_human", settings.num_human / 4, used));
    write_manifest(manifest_path(context.data_dir, "train"), train);
  }

 private:
  static std::vector<Json> speak(const BuildContext& context, const DigitsSettings& settings,
                                 const std::string& split, int count,
                                 const std::vector<std::string>& variants) {
    std::vector<Json> utterances(static_cast<std::size_t>(count));
    for_each_parallel("speaking " + split, utterances.size(), [&](std::size_t i) {
      Random rng({settings.seed, hash64(split), i});
      const std::string text = random_text(rng);
      const std::string variant = variants[rng.below(variants.size())];
      const std::string id = fmt::format("{}_{:05}", split, i);
      const fs::path wav = context.data_dir / "wav" / (id + ".wav");
      speak_with_espeak(text, variant, rng, wav);
      utterances[i] = {
          {"id", id}, {"audio", "wav/" + id + ".wav"}, {"text", text}, {"speaker", variant}};
    });
    return utterances;
  }

  // Sequences of recorded digits with short pauses; `used` keeps training's sequences out of the
  // test.
  static std::vector<Json> join_recordings(const BuildContext& context,
                                           const DigitsSettings& settings, const std::string& split,
                                           int count, std::set<std::string>& used) {
    std::vector<data::Audio> words;
    for (int digit = 0; digit < 10; ++digit)
      words.push_back(
          data::read_audio(fs::path(settings.human_dir) / fmt::format("{}.wav", digit)));
    std::vector<Json> utterances;
    Random rng({settings.seed, hash64(split)});
    while (utterances.size() < static_cast<std::size_t>(count)) {
      std::string digits;
      for (std::uint64_t n = 2 + rng.below(5); n > 0; --n)
        digits += static_cast<char>('0' + rng.below(10));
      if (!used.insert(digits).second) continue;
      data::Audio joined{.samples = {}, .sample_rate = words[0].sample_rate};
      auto& samples = joined.samples;
      for (const char digit : digits) {
        const auto& word = words[static_cast<std::size_t>(digit - '0')];
        samples.insert(samples.end(), word.samples.begin(), word.samples.end());
        samples.insert(samples.end(),
                       static_cast<std::size_t>(rng.uniform(0.02, 0.15) * word.sample_rate), 0.0F);
      }
      const std::string id = fmt::format("{}_{:05}", split, utterances.size());
      data::write_wav(context.data_dir / "wav" / (id + ".wav"), joined);
      utterances.push_back({{"id", id},
                            {"audio", "wav/" + id + ".wav"},
                            {"text", digits_in_words(digits)},
                            {"speaker", "allison"}});
    }
    return utterances;
  }
};

}  // namespace

std::unique_ptr<DatasetBuilder> make_digits_builder() { return std::make_unique<DigitsBuilder>(); }

}  // namespace tutti::systems
