// A few voices that another recipe's model has not heard, speaking numbers: enough to adapt it, and to see
// what that gains. No text of the test is one of training's or validation's.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "../digits/numbers.h"
#include "../digits/voices.h"
#include "tutti/config/plugin.h"
#include "tutti/core/file.h"
#include "tutti/core/random.h"
#include "tutti/systems/dataset_builder.h"

namespace tutti::recipes {
namespace {

namespace fs = std::filesystem;
using systems::BuildContext;

struct FinetuneSettings {
  std::vector<std::string> voices = {"slt", "Hugo", "Alicia"};
  int num_train = 240;
  int num_valid = 40;
  int num_test = 120;
  std::uint64_t seed = 0;
};

class FinetuneBuilder final : public systems::DatasetBuilder {
 public:
  explicit FinetuneBuilder(FinetuneSettings settings) : settings_(std::move(settings)) {}
  std::vector<std::string> splits() const override { return {"train", "valid", "test"}; }

  void build(const BuildContext& context) const override {
    make_folders(context.data_dir / "wav");
    std::set<std::string> known;  // texts of the sets before
    for (const auto& [split, count] : {std::pair{"test", settings_.num_test},
                                       {"valid", settings_.num_valid},
                                       {"train", settings_.num_train}}) {
      const auto utterances = speak(context, split, count, known);
      for (const Json& one : utterances) known.insert(one.at("text").get<std::string>());
      systems::write_manifest(systems::manifest_path(context.data_dir, split), utterances);
    }
  }

 private:
  std::vector<Json> speak(const BuildContext& context, const std::string& split, int count,
                          const std::set<std::string>& known) const {
    std::vector<Json> utterances(static_cast<std::size_t>(count));
    systems::for_each_parallel("speaking " + split, utterances.size(), [&](std::size_t i) {
      Random rng({settings_.seed, hash64("finetune " + split), i});
      std::string text = random_text(rng);
      while (known.count(text) > 0) text = random_text(rng);
      const std::string& voice = settings_.voices[i % settings_.voices.size()];
      const auto& flite = flite_voices();
      const bool is_flite = std::find(flite.begin(), flite.end(), voice) != flite.end();
      const std::string id = fmt::format("{}_{:05}", split, i);
      (is_flite ? speak_with_flite : speak_with_espeak)(text, voice, rng,
                                                        context.data_dir / "wav" / (id + ".wav"));
      utterances[i] = {
          {"id", id}, {"audio", "wav/" + id + ".wav"}, {"text", text}, {"speaker", voice}};
    });
    return utterances;
  }

  FinetuneSettings settings_;
};

}  // namespace

TUTTI_PLUGIN(registry) {
  using S = FinetuneSettings;
  config::Schema<S> schema("finetune", "Numbers in voices that a model has not heard.");
  schema.field("voices", &S::voices, "variants of espeak-ng and voices of flite");
  schema.field("num_train", &S::num_train, "utterances to adapt with", {.min = 1});
  schema.field("num_valid", &S::num_valid, "utterances of validation", {.min = 1});
  schema.field("num_test", &S::num_test, "utterances of the test", {.min = 1});
  schema.field("seed", &S::seed, "of texts and voices");
  registry.add<systems::DatasetBuilder>(
      schema, [](const S& settings) { return std::make_unique<FinetuneBuilder>(settings); });
}

}  // namespace tutti::recipes
