// The part of model_config.h about features: the frontend that makes them, and SpecAugment.
#pragma once

#include "tutti/config/node.h"
#include "tutti/config/problem.h"
#include "tutti/config/schema.h"
#include "tutti/speech/models/asr_settings.h"

namespace tutti::speech {

LogMelSettings read_frontend(const config::Node& conf, config::Problems& problems);
SpecAugmentSettings read_specaug(const config::Node& conf, config::Problems& problems);

// For the reference.
config::SchemaInfo frontend_info();
config::SchemaInfo specaug_info();

}  // namespace tutti::speech
