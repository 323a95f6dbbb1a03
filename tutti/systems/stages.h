// The built-in stages; bodies live in one file each beside this header.
#pragma once

#include <vector>

#include "tutti/systems/stage.h"

namespace tutti::systems {

std::vector<Stage> builtin_stages();

void create_dataset(const StageContext& context);
void validate_dataset(const StageContext& context);
void train_tokenizer(const StageContext& context);
void collect_stats(const StageContext& context);
void refuse_training(const StageContext& context);  // before anything is touched
void train(const StageContext& context);
void infer(const StageContext& context);
void measure(const StageContext& context);
void pack_model(const StageContext& context);
void demo(const StageContext& context);

// What decides the output of the two that score and pack what others left; empty while it is not there.
Fingerprint measure_inputs(const StageContext& context);
Fingerprint pack_inputs(const StageContext& context);

}  // namespace tutti::systems
