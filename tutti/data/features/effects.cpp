#include "tutti/data/features/effects.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/data/preprocess.h"

namespace tutti::data {
namespace {

const std::map<std::string, std::map<std::string, double>>& known_effects() {
  static const std::map<std::string, std::map<std::string, double>> all = {
      {"lowpass", {{"cutoff_freq", 1000}, {"Q", 0.707}}},
      {"highpass", {{"cutoff_freq", 3000}, {"Q", 0.707}}},
      {"bandpass", {{"center_freq", 3000}, {"Q", 0.707}}},
      {"bandreject", {{"center_freq", 3000}, {"Q", 0.707}}},
      {"equalization", {{"center_freq", 1000}, {"gain", 0}, {"Q", 0.707}}},
      {"contrast", {{"enhancement_amount", 75}}},
      {"clipping", {{"min_quantile", 0}, {"max_quantile", 0.9}}},
      {"preemphasis", {{"coeff", 0.97}}},
      {"deemphasis", {{"coeff", 0.97}}},
      {"speed_perturb", {{"factor", 1}}},
      {"polarity_inverse", {}},
      {"reverse", {}},
  };
  return all;
}

// y[n] = b0 x[n] + b1 x[n-1] + b2 x[n-2] - a1 y[n-1] - a2 y[n-2], already divided by a0.
struct Biquad {
  double b0 = 1, b1 = 0, b2 = 0, a1 = 0, a2 = 0;

  void filter(std::vector<float>& x) const {
    double x1 = 0, x2 = 0, y1 = 0, y2 = 0;
    for (float& value : x) {
      const double in = value;
      const double out = b0 * in + b1 * x1 + b2 * x2 - a1 * y1 - a2 * y2;
      x2 = x1;
      x1 = in;
      y2 = y1;
      y1 = out;
      value = static_cast<float>(std::clamp(out, -1.0, 1.0));
    }
  }
};

// The second-order sections of the audio-EQ formulas that sox uses as well.
Biquad design(const Effect& effect, int sample_rate) {
  const auto argument = [&](const char* name) { return effect.arguments.at(name); };
  const std::string& name = effect.name;
  const bool has_cutoff = effect.arguments.count("cutoff_freq") > 0;
  const double frequency = argument(has_cutoff ? "cutoff_freq" : "center_freq");
  // A recipe for 16 kHz stays usable on telephone audio: nothing above the band is asked for.
  const double w = 2 * std::numbers::pi * std::min(frequency, 0.49 * sample_rate) / sample_rate;
  const double cosine = std::cos(w);
  const double alpha = std::sin(w) / (2 * argument("Q"));
  const double a0 = 1 + alpha;
  Biquad f;
  f.a1 = -2 * cosine / a0;
  f.a2 = (1 - alpha) / a0;
  if (name == "lowpass") {
    f.b0 = f.b2 = (1 - cosine) / 2 / a0;
    f.b1 = (1 - cosine) / a0;
  } else if (name == "highpass") {
    f.b0 = f.b2 = (1 + cosine) / 2 / a0;
    f.b1 = -(1 + cosine) / a0;
  } else if (name == "bandpass") {
    f.b0 = alpha / a0;
    f.b1 = 0;
    f.b2 = -alpha / a0;
  } else if (name == "bandreject") {
    f.b0 = f.b2 = 1 / a0;
    f.b1 = -2 * cosine / a0;
  } else {  // equalization: a peak of `gain` dB
    const double amplitude = std::pow(10.0, argument("gain") / 40);
    const double peak_a0 = 1 + alpha / amplitude;
    f.b0 = (1 + alpha * amplitude) / peak_a0;
    f.b1 = f.a1 = -2 * cosine / peak_a0;
    f.b2 = (1 - alpha * amplitude) / peak_a0;
    f.a2 = (1 - alpha / amplitude) / peak_a0;
  }
  return f;
}

// Makes quiet parts louder, as sox's effect of that name does.
void add_contrast(std::vector<float>& x, double amount) {
  const double strength = amount / 750;
  for (float& value : x) {
    const double phase = value * std::numbers::pi / 2;
    value = static_cast<float>(std::sin(phase + strength * std::sin(phase * 4)));
  }
}

double quantile(std::vector<float> sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  const double part = at - static_cast<double>(below);
  return (1 - part) * sorted[below] + part * sorted[above];
}

// Keys by which a weighted sample without repetition is the `count` largest (Efraimidis, Spirakis).
std::size_t pick_one(const std::vector<WeightedEffect>& choices, Random& random) {
  std::size_t best = 0;
  double best_key = -1;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const double key = std::pow(random.uniform(), 1 / choices[i].weight);
    if (key <= best_key) continue;
    best_key = key;
    best = i;
  }
  return best;
}

bool read_weight(const config::Node& node, double& weight, config::Problems& problems) {
  std::string expected;
  if (config::read(node, weight, expected) && weight > 0) return true;
  problems.add(node, "got " + node.describe_value() + ", expected a weight above 0");
  return false;
}

// [weight, name, {arguments}]
bool read_effect(const config::Node& entry, WeightedEffect& out, config::Problems& problems) {
  if (!entry.is_list() || entry.size() < 2 || entry.size() > 3 || !entry[1].is_scalar()) {
    problems.add(entry, "got " + entry.describe_value() + ", expected [weight, name, {arguments}]");
    return false;
  }
  if (!read_weight(entry[0], out.weight, problems)) return false;
  out.effect.name = entry[1].raw();
  const auto known = known_effects().find(out.effect.name);
  if (known == known_effects().end()) {
    const std::string guess = closest_match(out.effect.name, effect_names());
    problems.add(
        entry[1],
        fmt::format("got '{}', expected one of {}", out.effect.name, join(effect_names(), ", ")),
        guess.empty() ? "" : fmt::format("did you mean '{}'?", guess));
    return false;
  }
  out.effect.arguments = known->second;
  if (entry.size() < 3) return true;
  bool ok = true;
  for (const auto& [key, value] : entry[2].items()) {
    if (key == "sample_rate") continue;  // the audio says it
    double number = 0;
    std::string expected;
    if (out.effect.arguments.count(key) == 0) {
      problems.add(value, fmt::format("{} has no argument '{}'", out.effect.name, key));
      ok = false;
    } else if (!config::read(value, number, expected)) {
      problems.add(value, "got " + value.describe_value() + ", expected a number");
      ok = false;
    } else {
      out.effect.arguments[key] = number;
    }
  }
  return ok;
}

}  // namespace

std::vector<std::string> effect_names() {
  std::vector<std::string> names;
  for (const auto& [name, arguments] : known_effects()) names.push_back(name);
  return names;
}

std::vector<EffectGroup> parse_effects(const config::Node& list, config::Problems& problems) {
  std::vector<EffectGroup> groups;
  if (list.is_null()) return groups;
  if (!list.is_list()) {
    problems.add(list, "got " + list.describe_value() + ", expected a list of effects");
    return groups;
  }
  for (const config::Node& entry : list.elements()) {
    EffectGroup group;
    if (entry.is_list() && entry.size() == 2 && entry[1].is_list()) {
      if (!read_weight(entry[0], group.weight, problems)) continue;
      for (const config::Node& choice : entry[1].elements()) {
        WeightedEffect effect;
        if (read_effect(choice, effect, problems)) group.choices.push_back(std::move(effect));
      }
    } else {
      WeightedEffect effect;
      if (!read_effect(entry, effect, problems)) continue;
      group.weight = effect.weight;
      group.choices.push_back(std::move(effect));
    }
    if (!group.choices.empty()) groups.push_back(std::move(group));
  }
  return groups;
}

std::vector<Effect> draw_effects(const std::vector<EffectGroup>& groups, std::size_t count,
                                 Random& random) {
  std::vector<double> keys;
  for (const auto& group : groups) keys.push_back(std::pow(random.uniform(), 1 / group.weight));
  std::vector<std::size_t> order(groups.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return keys[a] > keys[b]; });
  order.resize(std::min(count, order.size()));
  std::vector<Effect> drawn;
  for (const std::size_t i : order)
    drawn.push_back(groups[i].choices[pick_one(groups[i].choices, random)].effect);
  return drawn;
}

std::vector<float> apply_effect(const Effect& effect, std::vector<float> speech, int sample_rate) {
  const std::string& name = effect.name;
  if (speech.empty()) return speech;
  if (name == "speed_perturb") return change_speed(speech, effect.arguments.at("factor"));
  if (name == "contrast") {
    add_contrast(speech, effect.arguments.at("enhancement_amount"));
  } else if (name == "clipping") {
    std::vector<float> sorted = speech;
    std::sort(sorted.begin(), sorted.end());
    const auto low = static_cast<float>(quantile(sorted, effect.arguments.at("min_quantile")));
    const auto high = static_cast<float>(quantile(sorted, effect.arguments.at("max_quantile")));
    for (float& value : speech) value = std::clamp(value, low, high);
  } else if (name == "preemphasis") {
    const auto coeff = static_cast<float>(effect.arguments.at("coeff"));
    for (std::size_t i = speech.size() - 1; i > 0; --i) speech[i] -= coeff * speech[i - 1];
  } else if (name == "deemphasis") {
    const auto coeff = static_cast<float>(effect.arguments.at("coeff"));
    for (std::size_t i = 1; i < speech.size(); ++i) speech[i] += coeff * speech[i - 1];
    for (float& value : speech) value = std::clamp(value, -1.0F, 1.0F);
  } else if (name == "polarity_inverse") {
    for (float& value : speech) value = -value;
  } else if (name == "reverse") {
    std::reverse(speech.begin(), speech.end());
  } else {
    design(effect, sample_rate).filter(speech);
  }
  return speech;
}

}  // namespace tutti::data
