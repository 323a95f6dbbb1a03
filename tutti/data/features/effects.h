// Sound effects that training hears and evaluation does not: ESPnet's `data_aug_effects`.
//
//   data_aug_effects:
//     - [0.1, highpass, {cutoff_freq: 300}]
//     - [0.5, [[0.3, speed_perturb, {factor: 0.9}], [0.3, speed_perturb, {factor: 1.1}]]]
//   data_aug_num: [1, 2]
//   data_aug_prob: 0.7
//
// Per utterance, as many entries as data_aug_num says are drawn by weight without repetition and
// applied in the order drawn; an entry with a list is one effect out of that list. The caller draws
// from its own random stream, so the audio depends on nothing else. Plain functions, thread-safe.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tutti/config/node.h"
#include "tutti/config/problem.h"
#include "tutti/core/random.h"

namespace tutti::data {

struct Effect {
  std::string name;
  std::map<std::string, double> arguments;  // defaults filled in
};

struct WeightedEffect {
  double weight = 1;
  Effect effect;
};

struct EffectGroup {
  double weight = 1;
  std::vector<WeightedEffect> choices;  // one of them is applied; never empty
};

// The effects by name: lowpass, highpass, bandpass, bandreject, equalization, contrast, clipping,
// preemphasis, deemphasis, speed_perturb, polarity_inverse, reverse.
std::vector<std::string> effect_names();
// Unknown names and arguments are problems with a suggestion; the rest of the list is still read.
std::vector<EffectGroup> parse_effects(const config::Node& list, config::Problems& problems);

// `count` groups of the list, at most all.
std::vector<Effect> draw_effects(const std::vector<EffectGroup>& groups, std::size_t count,
                                 Random& random);
// REQUIRES: a name of effect_names() with its arguments. Only speed_perturb changes the length.
std::vector<float> apply_effect(const Effect& effect, std::vector<float> speech, int sample_rate);

}  // namespace tutti::data
