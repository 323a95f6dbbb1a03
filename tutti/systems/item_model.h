// A model as the infer stage sees it: samples in, one JSON object of named fields out per sample.
// What `model._target_` of an inference config names is one of these.
//
//   auto model = load_item_model(inference, 8);
//   std::vector<Json> results = model->run(samples);   // {"utt_id": ..., "hyp": ..., "ref": ...}
//
// One object per worker, used by one thread at a time, but for begin().
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tutti/config/node.h"
#include "tutti/core/fingerprint.h"
#include "tutti/core/json.h"
#include "tutti/data/dataset.h"

namespace tutti::speech {
struct Recognised;
}

namespace tutti::systems {

class ItemModel {
 public:
  virtual ~ItemModel() = default;
  virtual int sample_rate() const = 0;  // Hz, of the samples it wants
  // What happens to a sample before run(); throws DataError for audio that cannot be used.
  virtual void prepare(data::Sample& /*sample*/) const {}
  // Work on samples whose turn is next, from a second thread while run() is busy: what it returns goes to
  // run() with the same samples. Null: run() does all of it.
  virtual bool can_begin() const { return false; }
  virtual std::shared_ptr<void> begin(const std::vector<data::Sample>& /*samples*/) {
    return nullptr;
  }
  // One object per sample, in order. Throws DataError, with its name, for audio it cannot take.
  virtual std::vector<Json> run(const std::vector<data::Sample>& samples,
                                std::shared_ptr<void> begun = nullptr) = 0;
};

// From a whole inference config; its top-level device, device_index and batch_size serve a model
// block that has none. Throws ConfigError, or DataError when weights and config do not fit.
std::unique_ptr<ItemModel> load_item_model(const config::Node& inference);
std::size_t batch_size_of(const config::Node& inference);
// Without loading anything: what decides the results, and the fields that are written as FIELD.scp
// when the config has no output_keys.
Fingerprint item_model_inputs(const config::Node& inference);
std::vector<std::string> item_model_outputs(const config::Node& model);

// Loads a pack on the CPU and lets it go; throws when it cannot be used.
void try_packed_recognizer(const std::filesystem::path& folder);

// What a recogniser found, as fields: hyp, score, confidence, tokens, ... (docs/decoding.md).
Json recognition_fields(const speech::Recognised& recognised);

// `model: {_target_: torchscript, ...}`; see docs/recipes.md for its keys.
bool is_torchscript(const config::Node& model);
std::unique_ptr<ItemModel> load_torchscript_item_model(const config::Node& model);
Fingerprint torchscript_inputs(const config::Node& model);
std::vector<std::string> torchscript_outputs(const config::Node& model);

}  // namespace tutti::systems
