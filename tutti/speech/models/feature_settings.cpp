#include "tutti/speech/models/feature_settings.h"

#include "tutti/speech/models/encoder_config.h"

namespace tutti::speech {
namespace {

using config::Node;
using config::Problems;
using config::Schema;

struct FrontendConf : LogMelSettings {
  Node fs_text;
  bool onesided = true;
  bool apply_stft = true;
  Node frontend_conf;
};

// "16000" or "16k", as ESPnet takes it.
int read_rate(const Node& node, Problems& problems) {
  if (node.is_null()) return 16000;
  std::string text = node.is_scalar() ? node.raw() : "";
  double factor = 1;
  if (!text.empty() && (text.back() == 'k' || text.back() == 'K')) {
    factor = 1000;
    text.pop_back();
  }
  try {
    std::size_t used = 0;
    const double rate = std::stod(text, &used) * factor;
    if (used == text.size() && rate >= 1) return static_cast<int>(rate);
  } catch (const std::exception&) {  // std::stod's way to say that it is no number
  }
  problems.add(node,
               "got " + node.describe_value() + ", expected a sampling rate like 16000 or 16k");
  return 16000;
}

Schema<FrontendConf> frontend_schema() {
  using T = FrontendConf;
  Schema<T> s("frontend_conf", "Log-mel features.");
  s.field("fs", &T::fs_text, "sampling rate", {.unit = "Hz"});
  s.field("n_fft", of<T>(&LogMelSettings::n_fft), "FFT size", {.min = 2, .unit = "samples"});
  s.field("win_length", of<T>(&LogMelSettings::win_length), "window",
          {.min = 1, .unit = "samples"});
  s.field("hop_length", of<T>(&LogMelSettings::hop_length), "hop", {.min = 1, .unit = "samples"});
  s.field("window", of<T>(&LogMelSettings::window), "window function",
          {.one_of = {"hann", "hamming", "blackman", "bartlett"}});
  s.field("center", of<T>(&LogMelSettings::center), "frames centred on their time");
  s.field("normalized", of<T>(&LogMelSettings::normalized), "divide by sqrt(n_fft)");
  s.field("onesided", &T::onesided, "only true");
  s.field("n_mels", of<T>(&LogMelSettings::n_mels), "mel bands", {.min = 1});
  s.field("fmin", of<T>(&LogMelSettings::fmin), "lowest frequency", {.min = 0, .unit = "Hz"});
  s.field("fmax", of<T>(&LogMelSettings::fmax), "highest frequency", {.min = 0, .unit = "Hz"});
  s.field("htk", of<T>(&LogMelSettings::htk), "HTK's mel scale instead of Slaney's");
  s.field("apply_stft", &T::apply_stft, "only true");
  s.field("frontend_conf", &T::frontend_conf,
          "speech enhancement; only its defaults, which switch it off");
  return s;
}

struct SpecAugConf : SpecAugmentSettings {
  Node freq_range, time_range, ratio_range;
};

// [low, high], or high alone.
template <class T>
std::optional<std::pair<T, T>> read_range(const Node& node, Problems& problems) {
  if (node.is_null()) return std::nullopt;
  std::pair<T, T> range{};
  if (node.is_list() && node.size() == 2) {
    range = {node[0].as<T>(), node[1].as<T>()};
  } else if (node.is_scalar()) {
    range = {T{}, node.as<T>()};
  }
  if (range.second > range.first && range.first >= T{}) return range;
  problems.add(node,
               "got " + node.describe_value() + ", expected [low, high] with 0 <= low < high");
  return std::nullopt;
}

Schema<SpecAugConf> specaug_schema() {
  using T = SpecAugConf;
  Schema<T> s("specaug_conf", "SpecAugment.");
  s.field("apply_time_warp", of<T>(&SpecAugmentSettings::apply_time_warp), "warp time");
  s.field("time_warp_window", of<T>(&SpecAugmentSettings::time_warp_window), "how far",
          {.min = 1, .unit = "frames"});
  s.field("time_warp_mode", of<T>(&SpecAugmentSettings::time_warp_mode), "interpolation",
          {.one_of = {"bicubic"}});
  s.field("apply_freq_mask", of<T>(&SpecAugmentSettings::apply_freq_mask), "mask frequencies");
  s.field("freq_mask_width_range", &T::freq_range, "width of a mask, upper end excluded");
  s.field("num_freq_mask", of<T>(&SpecAugmentSettings::num_freq_mask), "number of masks",
          {.min = 0});
  s.field("apply_time_mask", of<T>(&SpecAugmentSettings::apply_time_mask), "mask times");
  s.field("time_mask_width_range", &T::time_range, "width of a mask in frames, upper end excluded");
  s.field("time_mask_width_ratio_range", &T::ratio_range,
          "width of a mask as a share of the length");
  s.field("num_time_mask", of<T>(&SpecAugmentSettings::num_time_mask), "number of masks",
          {.min = 0});
  s.field("replace_with_zero", of<T>(&SpecAugmentSettings::replace_with_zero),
          "fill with 0 instead of the mean");
  return s;
}

}  // namespace

LogMelSettings read_frontend(const config::Node& node, config::Problems& problems) {
  FrontendConf conf = frontend_schema().parse(node, problems);
  conf.fs = read_rate(conf.fs_text, problems);
  if (!conf.onesided) problems.add(node["onesided"], "only true is supported");
  if (!conf.apply_stft) problems.add(node["apply_stft"], "only true is supported");
  for (const char* key : {"use_wpe", "use_beamformer"})
    if (conf.frontend_conf.is_map() && conf.frontend_conf[key].value_or<bool>(false))
      problems.add(conf.frontend_conf[key], "speech enhancement in the frontend is not supported");
  return conf;
}

SpecAugmentSettings read_specaug(const config::Node& node, config::Problems& problems) {
  SpecAugConf conf = specaug_schema().parse(node, problems);
  if (const auto range = read_range<int>(conf.freq_range, problems))
    conf.freq_mask_width_range = *range;
  conf.time_mask_width_range = read_range<int>(conf.time_range, problems);
  conf.time_mask_width_ratio_range = read_range<double>(conf.ratio_range, problems);
  const int given = !conf.time_range.is_null() + !conf.ratio_range.is_null();
  if (conf.apply_time_mask && given != 1)
    problems.add(node,
                 "got " + std::to_string(given) +
                     " of time_mask_width_range and time_mask_width_ratio_range, expected one",
                 "add time_mask_width_ratio_range: [0.0, 0.05], or apply_time_mask: false");
  return conf;
}

config::SchemaInfo frontend_info() { return frontend_schema().info(); }

config::SchemaInfo specaug_info() { return specaug_schema().info(); }

}  // namespace tutti::speech
