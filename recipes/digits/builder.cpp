// The demo corpus: spoken numbers made from what Debian offers. espeak-ng and flite speak them in many voices. Those of
// `test_voices` are never heard in training, those of `test_texts` are; no text of a test set is one of training's or
// validation's.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "numbers.h"
#include "tutti/config/plugin.h"
#include "tutti/core/file.h"
#include "tutti/core/random.h"
#include "tutti/systems/dataset_builder.h"
#include "voices.h"

namespace tutti::recipes {
namespace {

namespace fs = std::filesystem;
using systems::BuildContext;
using systems::manifest_path;
using systems::write_manifest;

struct DigitsSettings {
  int num_train = 1600;
  int num_valid = 100;
  int num_test = 120;
  std::uint64_t seed = 0;
};

struct Voice {
  std::string name;
  bool is_flite = false;
};

// One of flite's voices for every two or three of espeak-ng's: they were built from people's recordings.
std::vector<Voice> training_voices() {
  std::vector<Voice> voices;
  const auto& flite = flite_voices();
  for (const auto& variant : training_variants()) {
    voices.push_back({variant, false});
    if (voices.size() % 3 == 2)
      voices.push_back({flite[voices.size() / 3 % (flite.size() - 1)], true});
  }
  return voices;
}

std::vector<Voice> test_voices() {
  std::vector<Voice> voices = {{flite_voices().back(), true}};
  for (const auto& variant : test_variants()) voices.push_back({variant, false});
  return voices;
}

class DigitsBuilder final : public systems::DatasetBuilder {
 public:
  explicit DigitsBuilder(DigitsSettings settings) : settings_(std::move(settings)) {}
  std::vector<std::string> splits() const override {
    return {"train", "valid", "test_voices", "test_texts"};
  }

  void build(const BuildContext& context) const override {
    make_folders(context.data_dir / "wav");
    std::set<std::string> known;  // texts of the sets before
    const auto train = speak(context, "train", settings_.num_train, training_voices(), known);
    const auto valid = speak(context, "valid", settings_.num_valid, training_voices(), known);
    write_manifest(manifest_path(context.data_dir, "test_voices"),
                   speak(context, "test_voices", settings_.num_test, test_voices(), known));
    write_manifest(manifest_path(context.data_dir, "test_texts"),
                   speak(context, "test_texts", settings_.num_test, training_voices(), known));
    write_manifest(manifest_path(context.data_dir, "valid"), valid);
    write_manifest(manifest_path(context.data_dir, "train"), train);
  }

 private:
  // Texts that no set before has; within a set they may come twice.
  std::vector<Json> speak(const BuildContext& context, const std::string& split, int count,
                          const std::vector<Voice>& voices, std::set<std::string>& known) const {
    std::vector<Json> utterances(static_cast<std::size_t>(count));
    systems::for_each_parallel("speaking " + split, utterances.size(), [&](std::size_t i) {
      Random rng({settings_.seed, hash64(split), i});
      std::string text = random_text(rng);
      while (known.count(text) > 0) text = random_text(rng);
      const Voice& voice = voices[rng.below(voices.size())];
      const std::string id = fmt::format("{}_{:05}", split, i);
      const fs::path wav = context.data_dir / "wav" / (id + ".wav");
      (voice.is_flite ? speak_with_flite : speak_with_espeak)(text, voice.name, rng, wav);
      utterances[i] = {
          {"id", id}, {"audio", "wav/" + id + ".wav"}, {"text", text}, {"speaker", voice.name}};
    });
    for (const Json& utterance : utterances) known.insert(utterance.at("text").get<std::string>());
    return utterances;
  }

  DigitsSettings settings_;
};

}  // namespace

TUTTI_PLUGIN(registry) {
  using S = DigitsSettings;
  config::Schema<S> schema("digits", "Spoken numbers.");
  schema.field("num_train", &S::num_train, "utterances of training", {.min = 1});
  schema.field("num_valid", &S::num_valid, "utterances of validation, by training's voices",
               {.min = 1});
  schema.field("num_test", &S::num_test, "utterances of each test set", {.min = 1});
  schema.field("seed", &S::seed, "of texts and voices");
  registry.add<systems::DatasetBuilder>(
      schema, [](const S& settings) { return std::make_unique<DigitsBuilder>(settings); });
}

}  // namespace tutti::recipes
