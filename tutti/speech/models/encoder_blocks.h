// The blocks of the encoders and their input layers; encoder.h is the way in.
#pragma once

#include <memory>

#include "tutti/speech/models/encoder.h"

namespace tutti::speech {

std::shared_ptr<InputLayer> make_input_layer(Build build, const EncoderSettings& settings);
// `index` counts from 0; it picks the stochastic depth and the cross-attention.
std::shared_ptr<EncoderBlock> make_encoder_block(Build build, const EncoderSettings& settings,
                                                 std::int64_t index);

// Gate convolutions as ESPnet initialises them: nearly the identity at the start of training.
class GateInitialization {
 public:
  virtual ~GateInitialization() = default;
  virtual void initialise_gate() = 0;
};

}  // namespace tutti::speech
