// An AsrModel as the searches see it.
#pragma once

#include "tutti/speech/decoding/beam_search.h"
#include "tutti/speech/decoding/transducer_search.h"
#include "tutti/speech/models/asr_model.h"
#include "tutti/speech/models/language_model.h"

namespace tutti::speech {

// Attention decoder and CTC, as far as the model has them, and a language model if one is given. The
// functions hold the modules, not the model.
SearchModel search_model(const AsrModel& model, const LanguageModel& lm = nullptr);
// Throws ConfigError when the model is not a transducer.
TransducerModel transducer_model(const AsrModel& model);

}  // namespace tutti::speech
