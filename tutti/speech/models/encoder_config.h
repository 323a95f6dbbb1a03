// The encoder's part of model_config.h.
#pragma once

#include <string>

#include "tutti/config/node.h"
#include "tutti/config/problem.h"
#include "tutti/config/schema.h"
#include "tutti/speech/models/asr_settings.h"

namespace tutti::speech {

// A member of a base class, as a member of the derived one: schemas take only those.
template <class T, class Base, class F>
F T::*of(F Base::*member) {
  return static_cast<F T::*>(member);
}

std::vector<std::string> encoder_names();
// A table per encoder, by its name.
std::vector<config::SchemaInfo> encoder_reference();

// `name_node` is where the name stands, for problems.
EncoderSettings read_encoder_conf(const std::string& name, const config::Node& name_node,
                                  const config::Node& conf, config::Problems& problems);

// Classes of the layers that make a model up, by which `units` and `activation_checkpointing` name them.
std::vector<std::string> layer_classes(const AsrSettings& settings);

}  // namespace tutti::speech
