#include "tutti/systems/item_model.h"

#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/systems/recognizer.h"

namespace tutti::systems {
namespace {

class RecognizerItemModel final : public ItemModel {
 public:
  explicit RecognizerItemModel(Recognizer recognizer) : recognizer_(std::move(recognizer)) {}
  int sample_rate() const override { return recognizer_.sample_rate; }

  std::vector<Json> run(const std::vector<data::Sample>& samples) override {
    std::vector<std::vector<float>> waveforms;
    for (const auto& sample : samples) waveforms.push_back(sample.speech);
    const auto recognised = recognizer_.speech2text->decode(waveforms);
    std::vector<Json> results;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      const auto& best = recognised[i].nbest.at(0);
      Json result = {{"utt_id", samples[i].uid},
                     {"hyp", best.text},
                     {"ref", samples[i].text},
                     {"score", best.score}};
      if (recognised[i].nbest.size() > 1)
        for (const auto& other : recognised[i].nbest)
          result["nbest"].push_back({{"text", other.text}, {"score", other.score}});
      results.push_back(std::move(result));
    }
    return results;
  }

 private:
  Recognizer recognizer_;
};

}  // namespace

bool is_torchscript(const config::Node& model) {
  return model.is_map() && model["_target_"].is_scalar() &&
         model["_target_"].raw() == "torchscript";
}

std::unique_ptr<ItemModel> load_item_model(const config::Node& inference, std::size_t batch_size) {
  const config::Node model = inference["model"];
  if (is_torchscript(model)) return load_torchscript_item_model(model);
  return std::make_unique<RecognizerItemModel>(load_recognizer(model, batch_size));
}

std::vector<std::string> item_model_files(const config::Node& model) {
  return is_torchscript(model) ? torchscript_files(model) : recognizer_files(model);
}

std::vector<std::string> item_model_outputs(const config::Node& model) {
  return is_torchscript(model) ? torchscript_outputs(model)
                               : std::vector<std::string>{"hyp", "ref"};
}

}  // namespace tutti::systems
