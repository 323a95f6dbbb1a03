#include "tutti/systems/item_model.h"

#include <fmt/format.h>

#include "tutti/config/merge.h"
#include "tutti/core/error.h"
#include "tutti/core/rounding.h"
#include "tutti/core/text.h"
#include "tutti/systems/recognizer.h"

namespace tutti::systems {
namespace {

// What nobody scored has no number that could be taken for one.
Json score_of(const std::optional<double>& value) {
  return value ? Json(round_score(*value)) : Json();
}

Json hypothesis_fields(const speech::Recognition& found) {
  Json fields = {{"score", score_of(found.score)},
                 {"confidence", score_of(found.confidence())},
                 {"tokens", found.tokens},
                 {"token_ids", found.token_ids}};
  if (!found.language.empty()) {
    fields["language"] = found.language;
    fields["full_text"] = found.full_text;
  }
  if (!found.times.empty()) {
    Json& times = fields["token_times"] = Json::array();
    for (const auto& span : found.times)
      times.push_back({round_time(span.begin), round_time(span.end)});
  }
  if (!found.token_confidences.empty()) {
    Json& sure = fields["token_confidences"] = Json::array();
    for (const double value : found.token_confidences) sure.push_back(round_score(value));
  }
  return fields;
}

std::vector<speech::Speech2Text::Waveform> waveforms_of(const std::vector<data::Sample>& samples) {
  std::vector<speech::Speech2Text::Waveform> waveforms;
  for (const auto& sample : samples) waveforms.emplace_back(sample.speech);
  return waveforms;
}

class RecognizerItemModel final : public ItemModel {
 public:
  explicit RecognizerItemModel(Recognizer recognizer) : recognizer_(std::move(recognizer)) {}
  int sample_rate() const override { return recognizer_.sample_rate; }
  void prepare(data::Sample& sample) const override {
    recognizer_.prepare(sample);
    const std::string problem = recognizer_.speech2text->problem_of(sample.speech);
    if (!problem.empty()) throw DataError(fmt::format("{}: {}", sample.uid, problem));
  }

  bool can_begin() const override { return recognizer_.speech2text->can_begin(); }
  std::shared_ptr<void> begin(const std::vector<data::Sample>& samples) override {
    return recognizer_.speech2text->begin(waveforms_of(samples));
  }

  std::vector<Json> run(const std::vector<data::Sample>& samples,
                        std::shared_ptr<void> begun) override {
    const auto recognised = recognizer_.speech2text->decode_waveforms(
        waveforms_of(samples), std::static_pointer_cast<speech::Speech2Text::Heard>(begun));
    std::vector<Json> results;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (!recognised[i].problem.empty())
        throw DataError(fmt::format("{}: {}", samples[i].uid, recognised[i].problem));
      Json result = {{"utt_id", samples[i].uid}, {"hyp", ""}, {"ref", samples[i].text}};
      result.update(recognition_fields(recognised[i]));
      results.push_back(std::move(result));
    }
    return results;
  }

 private:
  Recognizer recognizer_;
};

// Speech2Language: which language is spoken, and how sure the model is.
class LanguageItemModel final : public ItemModel {
 public:
  explicit LanguageItemModel(Recognizer recognizer) : recognizer_(std::move(recognizer)) {}
  int sample_rate() const override { return recognizer_.sample_rate; }
  void prepare(data::Sample& sample) const override { recognizer_.prepare(sample); }

  std::vector<Json> run(const std::vector<data::Sample>& samples,
                        std::shared_ptr<void> /*begun*/) override {
    const auto nbest = static_cast<std::size_t>(recognizer_.speech2text->options().nbest);
    const auto found = recognizer_.speech2text->languages(waveforms_of(samples), nbest);
    std::vector<Json> results;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      Json result = {{"utt_id", samples[i].uid},
                     {"hyp", found[i][0].language},
                     {"ref", samples[i].text},
                     {"score", round_score(found[i][0].probability)}};
      for (const auto& guess : found[i])
        result["nbest"].push_back(
            {{"text", guess.language}, {"score", round_score(guess.probability)}});
      results.push_back(std::move(result));
    }
    return results;
  }

 private:
  Recognizer recognizer_;
};

bool asks_for_language(const config::Node& model) {
  return model.is_map() && model["_target_"].is_scalar() &&
         model["_target_"].raw().ends_with("Speech2Language");
}

// The model block with what the top level says for it.
config::Node model_block(const config::Node& inference) {
  const config::Node model = inference["model"];
  if (!model.is_map() || !model["device"].is_null()) return model;
  std::string device = inference["device"].is_null() ? "" : inference["device"].as<std::string>();
  for (const char* key : {"device_index", "local_rank"})
    if (!inference[key].is_null() && (device.empty() || device == "cuda"))
      device = fmt::format("cuda:{}", inference[key].as<int>());
  return device.empty() ? model : config::with_key(model, "device", device);
}

// Utterances together where nobody says how many: 64 took 20 GB with a model of a billion
// parameters, and half of that fits most cards. Where memory ends before, batches are halved
// (speech2text.h).
constexpr std::size_t kTogetherOnGpu = 32;

// Whether the config itself says that it decodes on a GPU; the machine it is read on may have none.
bool is_for_gpu(const config::Node& inference) {
  const config::Node device = model_block(inference)["device"];
  if (device.is_scalar() && device.raw() != "auto") return device.raw().starts_with("cuda");
  const config::Node env = inference["parallel"]["env"];
  return env.is_scalar() && env.raw() == "local_gpu";
}

}  // namespace

void try_packed_recognizer(const std::filesystem::path& folder) {
  load_packed_recognizer(folder, config::from_json({{"device", "cpu"}, {"dtype", "float32"}}), 1);
}

Json recognition_fields(const speech::Recognised& recognised) {
  const auto& best = recognised.nbest.at(0);
  Json fields = {{"hyp", best.text}};
  fields.update(hypothesis_fields(best));
  for (const auto& segment : recognised.segments)
    fields["segments"].push_back({{"begin", round_time(segment.begin)},
                                  {"end", round_time(segment.end)},
                                  {"text", segment.text}});
  if (recognised.nbest.size() > 1)
    for (const auto& other : recognised.nbest) {
      Json alternative = {{"text", other.text}};
      alternative.update(hypothesis_fields(other));
      fields["nbest"].push_back(std::move(alternative));
    }
  return fields;
}

bool is_torchscript(const config::Node& model) {
  return model.is_map() && model["_target_"].is_scalar() &&
         model["_target_"].raw() == "torchscript";
}

std::size_t batch_size_of(const config::Node& inference) {
  const config::Node own = inference["batch_size"];
  if (!own.is_null() || is_torchscript(inference["model"])) return own.value_or<std::size_t>(1);
  const std::size_t by_itself = is_for_gpu(inference) ? kTogetherOnGpu : 1;
  return inference["model"]["batch_size"].value_or(by_itself);
}

std::unique_ptr<ItemModel> load_item_model(const config::Node& inference) {
  const config::Node model = model_block(inference);
  if (is_torchscript(model)) return load_torchscript_item_model(model);
  Recognizer recognizer = load_recognizer(model, batch_size_of(inference));
  if (asks_for_language(model)) return std::make_unique<LanguageItemModel>(std::move(recognizer));
  return std::make_unique<RecognizerItemModel>(std::move(recognizer));
}

Fingerprint item_model_inputs(const config::Node& inference) {
  const config::Node model = inference["model"];
  return is_torchscript(model) ? torchscript_inputs(model) : recognizer_inputs(model);
}

std::vector<std::string> item_model_outputs(const config::Node& model) {
  return is_torchscript(model) ? torchscript_outputs(model)
                               : std::vector<std::string>{"hyp", "ref"};
}

}  // namespace tutti::systems
