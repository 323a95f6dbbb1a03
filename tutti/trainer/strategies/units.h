// How a model is cut into units: the parameters that are gathered, used and let go together.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tutti/trainer/model.h"

namespace tutti::trainer {

struct UnitCut {
  // Classes of modules that are a unit each ("EncoderLayer"); what is in none of them is one unit
  // that stays gathered during a whole pass. Empty: consecutive modules of at least `min_params`.
  std::vector<std::string> classes;
  std::int64_t min_params = 1'000'000;
  // Weight matrices are gathered in another type than vectors (biases, norms), which then form one
  // unit of their own that stays gathered: they are small.
  bool vectors_apart = false;
  // The optimizer of each parameter: a unit's gradients are complete when its optimizer's loss was
  // differentiated. Those that are not named have the first.
  std::map<std::string, std::size_t> optimizer_of;
};

struct UnitSpec {
  std::string name;  // of its module, or of its first parameter
  NamedTensors parameters;
  bool resident = false;  // stays gathered during a pass
  std::size_t optimizer = 0;
};

// Units in the model's order; a unit holds parameters of one type and one optimizer which are all
// trainable or all frozen. Throws ConfigError naming the model's classes if one of `cut.classes` is not among them.
std::vector<UnitSpec> cut_into_units(TrainableModel& model, const UnitCut& cut);

// "tutti::speech::EncoderLayerImpl" -> "EncoderLayer".
std::string module_class(const torch::nn::Module& module);

}  // namespace tutti::trainer
