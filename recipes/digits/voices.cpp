#include "voices.h"

#include <fmt/format.h>

#include <array>

#include "tutti/core/error.h"
#include "tutti/core/subprocess.h"

namespace tutti::recipes {
namespace {

constexpr std::array kAccents = {"en-us", "en-gb", "en-gb-x-rp", "en-gb-scotland", "en-029"};

// What each of flite's voices speaks with by itself, in Hz.
double pitch_of(const std::string& voice) {
  if (voice == "awb") return 125;
  if (voice == "slt") return 170;
  return voice == "rms" ? 95 : 105;
}

void run_voice(const std::vector<std::string>& argv, const std::string& package) {
  const auto result = run_command({.argv = argv});
  if (!result.ok()) throw DataError(result.describe(), "install " + package);
}

}  // namespace

const std::vector<std::string>& training_variants() {
  static const std::vector<std::string> kVariants = {
      "m1",    "m2",      "m3",    "m4",    "m6",   "m7",    "m8",    "f1",      "f2",   "f3",
      "f5",    "Alex",    "Andy",  "Denis", "Gene", "Lee",   "Mario", "Michael", "Mike", "linda",
      "Annie", "belinda", "steph", "max",   "adam", "david", "john",  "paul"};
  return kVariants;
}

const std::vector<std::string>& test_variants() {
  static const std::vector<std::string> kVariants = {"m5", "f4", "Alicia", "rob", "Hugo"};
  return kVariants;
}

const std::vector<std::string>& flite_voices() {
  static const std::vector<std::string> kVoices = {"kal16", "awb", "rms", "slt"};
  return kVoices;
}

void speak_with_espeak(const std::string& text, const std::string& variant, Random& rng,
                       const std::filesystem::path& wav) {
  const std::string voice = fmt::format("{}+{}", kAccents[rng.below(kAccents.size())], variant);
  const auto speed = std::to_string(130 + rng.below(60));
  const auto pitch = std::to_string(30 + rng.below(40));
  run_voice({"espeak-ng", "-v", voice, "-s", speed, "-p", pitch, "-w", wav.string(), text},
            "espeak-ng");
}

void speak_with_flite(const std::string& text, const std::string& voice, Random& rng,
                      const std::filesystem::path& wav) {
  const double stretch = rng.uniform(0.75, 1.3), pitch = pitch_of(voice) * rng.uniform(0.8, 1.3);
  run_voice(
      {"flite", "-voice", voice, "--setf", fmt::format("duration_stretch={:.3f}", stretch),
       "--setf", fmt::format("int_f0_target_mean={:.1f}", pitch), "-t", text, "-o", wav.string()},
      "flite");
}

}  // namespace tutti::recipes
