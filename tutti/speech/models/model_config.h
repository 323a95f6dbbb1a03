// From the `task` and `model` blocks of a training file to AsrSettings. (ESPnet2's flat config.yaml
// becomes such a file in speech/espnet/flat_config.h.)
//
//   config::Problems problems;
//   AsrSettings settings = read_asr_settings(config, problems);
//   problems.throw_if_any();
//   AsrModel model(Build{}, settings);
//
// Names, keys and defaults are ESPnet's. A key that means something there and is not supported here
// is a problem, not a silent difference; so is a key nobody knows.
#pragma once

#include "tutti/config/node.h"
#include "tutti/config/problem.h"
#include "tutti/config/schema.h"
#include "tutti/speech/models/asr_settings.h"

namespace tutti::speech {

struct ReadOptions {
  // false: the token list and the statistics need not exist yet (checking a config before the
  // stages that make them).
  bool read_files = true;
  // false: a token list on disk may be another experiment's that train_tokenizer is to replace, or
  // that a trained model has its own copy of; another size than vocab_size is only warned of.
  bool judge_token_file = true;
};

// `config` is a whole training file; problems carry the place in it. Recipes name the task
// espnet3.systems.asr.task.ASRTask, espnet2.tasks.asr.ASRTask or espnet2.tasks.s2t.S2TTask, or asr and s2t. Torch-free.
AsrSettings read_asr_settings(const config::Node& config, config::Problems& problems,
                              ReadOptions options = {});

// The `model` block alone.
AsrSettings read_asr_model_block(const config::Node& model, bool is_s2t, config::Problems& problems,
                                 ReadOptions options = {});

// For the reference in docs/: the block and every *_conf in it.
std::vector<config::SchemaInfo> asr_model_reference();

}  // namespace tutti::speech
