// `dataset.preprocessor`: from a read sample to what is collated.
#pragma once

#include <functional>
#include <memory>

#include "tutti/config/node.h"
#include "tutti/core/json.h"
#include "tutti/data/loader.h"
#include "tutti/speech/text/token_list.h"

namespace tutti::systems {

// The tokens of a config: `token_type`, `token_list` and `bpemodel` of dataset.preprocessor, each
// falling back to the model's and the tokenizer's own blocks. Throws ConfigError when there is no
// token list, DataError when it cannot be read.
speech::TextCodec make_codec(const config::Node& training);

// Tokenises; training samples are also augmented as the block says, by (seed, epoch, utterance).
// Throws DataError, with the utterance's name, for audio nobody can learn from (io/audio.h).
data::Prepare make_prepare(const config::Node& training, bool is_training, std::uint64_t seed);
// What decoding does to a sample: as validation, but without tokens and without a longest length.
std::function<void(data::Sample&)> make_inference_prepare(const config::Node& training);
// The part of the block that decides what an evaluated sample is; augmentation does not.
Json decisive_preprocessing(const config::Node& training);

}  // namespace tutti::systems
