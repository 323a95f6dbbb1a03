#include "tutti/systems/transcribe/transcribe.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <iterator>

#include "tutti/config/load.h"
#include "tutti/config/merge.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/rounding.h"
#include "tutti/core/text.h"
#include "tutti/data/io/audio.h"
#include "tutti/systems/item_model.h"
#include "tutti/systems/recognizer.h"
#include "tutti/systems/transcribe/formats.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLeastAhead = 8;  // files read before some are decoded
constexpr double kReadAhead_s = 600;    // audio held at once, unless one file is longer

bool is_audio_name(const fs::path& file) {
  std::string extension = file.extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  for (const char* known : {".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".sph", ".aiff",
                            ".aif", ".au", ".w64", ".caf"})
    if (extension == known) return true;
  return false;
}

struct Input {
  std::string name;
  std::string bytes;  // of audio that came on stdin; else empty
};

bool looks_like_audio(std::string_view bytes) {
  for (const std::string_view magic :
       {"RIFF", "fLaC", "OggS", "NIST_1A", "ID3", "FORM", "\xff\xfb"})
    if (bytes.compare(0, magic.size(), magic) == 0) return true;
  return false;
}

void add_input(const std::string& word, std::vector<Input>& out) {
  if (word == "-") {
    std::string bytes((std::istreambuf_iterator<char>(std::cin)), {});
    if (looks_like_audio(bytes)) {
      out.push_back({"-", std::move(bytes)});
      return;
    }
    for (const std::string& line : split(bytes, '\n'))
      if (!trim(line).empty()) add_input(std::string(trim(line)), out);
  } else if (fs::is_directory(word)) {
    std::vector<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(word))
      if (entry.is_regular_file() && is_audio_name(entry.path()))
        files.push_back(entry.path().string());
    std::sort(files.begin(), files.end());
    if (files.empty()) throw DataError(word + ": no audio files in this folder");
    for (std::string& file : files) out.push_back({std::move(file), {}});
  } else {
    out.push_back({word, {}});
  }
}

config::Node read_overrides(const TranscribeRequest& request) {
  std::vector<std::string> words = request.options;
  if (!request.device.empty()) words.push_back("device=" + request.device);
  if (request.format == TranscriptFormat::kSrt || request.format == TranscriptFormat::kVtt ||
      request.format == TranscriptFormat::kCtm)
    words.emplace_back("token_times=true");
  config::Problems problems;
  config::ValuePtr root = config::from_json(Json::object()).value();
  for (const std::string& text : words) root = config::apply_override(root, "++" + text, problems);
  problems.throw_if_any();
  return config::Node(root);
}

class Transcriber {
 public:
  Transcriber(Recognizer recognizer, TranscriptFormat format)
      : recognizer_(std::move(recognizer)), format_(format) {
    batch_size_ = std::max(kLeastAhead, recognizer_.speech2text->options().batch_size);
    if (format_ == TranscriptFormat::kVtt) fmt::print("WEBVTT\n\n");
  }

  void add(const Input& input) {
    try {
      const data::AudioRequest wanted{.sample_rate = recognizer_.sample_rate};
      data::Audio audio = input.bytes.empty() ? data::read_audio(input.name, wanted)
                                              : data::decode_audio(input.bytes, input.name, wanted);
      data::Sample sample{.uid = input.name,
                          .speech = std::move(audio.samples),
                          .sample_rate = recognizer_.sample_rate};
      recognizer_.prepare(sample);
      held_s_ += static_cast<double>(sample.speech.size()) / sample.sample_rate;
      held_.push_back(std::move(sample));
    } catch (const Error& error) {
      flush();  // what came before it is printed before it
      refuse(input.name, error.what());
    }
    if (held_.size() >= batch_size_ || held_s_ >= kReadAhead_s) flush();
  }

  void flush() {
    std::vector<speech::Speech2Text::Waveform> waveforms;
    for (const auto& sample : held_) waveforms.emplace_back(sample.speech);
    const auto found = recognizer_.speech2text->decode_waveforms(waveforms);
    for (std::size_t i = 0; i < held_.size(); ++i) {
      if (found[i].problem.empty())
        print(held_[i], found[i]);
      else
        refuse(held_[i].uid, found[i].problem);
    }
    std::fflush(stdout);
    held_.clear();
    held_s_ = 0;
  }

  std::size_t num_refused() const { return num_refused_; }

 private:
  void refuse(const std::string& file, std::string why) {
    ++num_refused_;
    if (why.compare(0, file.size(), file) != 0) why = file + ": " + why;
    fmt::print(stderr, "{}\n", why);
    if (format_ == TranscriptFormat::kJson)
      fmt::print("{}\n", to_json_line({{"file", file}, {"error", why}}));
  }

  void print(const data::Sample& sample, const speech::Recognised& found) {
    const double seconds = static_cast<double>(sample.speech.size()) / sample.sample_rate;
    switch (format_) {
      case TranscriptFormat::kText:
        fmt::print("{} {}\n", sample.uid, found.nbest.at(0).text);
        return;
      case TranscriptFormat::kJson: {
        Json line = {{"file", sample.uid}, {"text", found.nbest.at(0).text}};
        Json fields = recognition_fields(found);
        fields.erase("hyp");
        line.update(fields);
        line["seconds"] = round_decimals(seconds, kTimeDecimals);
        fmt::print("{}\n", to_json_line(line));
        return;
      }
      case TranscriptFormat::kSrt: {
        const auto cues = make_cues(found, seconds);
        fmt::print("{}", to_srt(cues, next_cue_));
        next_cue_ += cues.size();
        return;
      }
      case TranscriptFormat::kVtt:
        fmt::print("{}", to_vtt(make_cues(found, seconds)));
        return;
      case TranscriptFormat::kCtm: {
        const auto words = timed_words(found.nbest.at(0));
        if (words.empty() && !found.nbest.at(0).text.empty())
          refuse(sample.uid, "no times: the model has no CTC to tell them");
        fmt::print("{}", to_ctm(sample.uid, words));
        return;
      }
    }
  }

  Recognizer recognizer_;
  const TranscriptFormat format_;
  std::size_t batch_size_ = kLeastAhead;
  std::vector<data::Sample> held_;
  double held_s_ = 0;
  std::size_t next_cue_ = 1;
  std::size_t num_refused_ = 0;
};

}  // namespace

std::size_t transcribe(const TranscribeRequest& request) {
  std::vector<Input> inputs;
  for (const std::string& word : request.inputs) add_input(word, inputs);
  if (inputs.empty())
    throw ConfigError("no audio files given", "tutti infer --model PACK audio.wav...");
  Transcriber transcriber(load_packed_recognizer(request.model, read_overrides(request), 0),
                          request.format);
  for (const Input& input : inputs) transcriber.add(input);
  transcriber.flush();
  return transcriber.num_refused();
}

}  // namespace tutti::systems
