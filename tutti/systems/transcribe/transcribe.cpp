#include "tutti/systems/transcribe/transcribe.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>

#include "tutti/config/load.h"
#include "tutti/config/merge.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/progress.h"
#include "tutti/core/rounding.h"
#include "tutti/core/status.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"
#include "tutti/data/io/audio.h"
#include "tutti/data/io/foreign_audio.h"
#include "tutti/systems/item_model.h"
#include "tutti/systems/models/model_source.h"
#include "tutti/systems/recognizer.h"
#include "tutti/systems/transcribe/formats.h"
#include "tutti/trainer/preemption.h"

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
  fs::path place;     // below the folder that was named, without an extension
};

bool looks_like_audio(std::string_view bytes) {
  for (const std::string_view magic :
       {"RIFF", "fLaC", "OggS", "NIST_1A", "ID3", "FORM", "\xff\xfb"})
    if (bytes.compare(0, magic.size(), magic) == 0) return true;
  return !data::foreign_format(bytes.substr(0, data::kForeignHead)).empty();
}

// What a folder has, in order. Files that would have to be converted are not passed over in silence.
std::vector<std::string> audio_in(const std::string& folder) {
  std::vector<std::string> files, foreign;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    if (is_audio_name(entry.path())) files.push_back(entry.path().string());
    if (data::has_foreign_name(entry.path())) foreign.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  std::sort(foreign.begin(), foreign.end());
  const std::string left_out =
      foreign.empty()
          ? ""
          : fmt::format("{} of a format that is not read here; convert them: {}",
                        foreign.size() == 1 ? "1 file" : fmt::format("{} files", foreign.size()),
                        data::conversion_of(foreign[0]));
  if (files.empty())
    throw DataError(folder + ": no audio files in this folder" +
                    (foreign.empty() ? "" : ", but " + left_out));
  if (!foreign.empty()) log::warning("{}: passing over {}", folder, left_out);
  return files;
}

void add_input(const std::string& word, std::vector<Input>& out) {
  if (word == "-") {
    std::string bytes((std::istreambuf_iterator<char>(std::cin)), {});
    if (looks_like_audio(bytes)) {
      out.push_back({"-", std::move(bytes), "stdin"});
      return;
    }
    for (const std::string& line : split(bytes, '\n'))
      if (!trim(line).empty()) add_input(std::string(trim(line)), out);
  } else if (fs::is_directory(word)) {
    for (const std::string& file : audio_in(word))
      out.push_back({file, {}, fs::path(file).lexically_relative(word).replace_extension()});
  } else {
    out.push_back({word, {}, fs::path(word).stem()});
  }
}

bool is_subtitles(TranscriptFormat format) {
  return format == TranscriptFormat::kSrt || format == TranscriptFormat::kVtt;
}

// The file of subtitles of each input, by the input's name; empty when they go to stdout.
std::map<std::string, fs::path> subtitle_files(const TranscribeRequest& request,
                                               const std::vector<Input>& inputs) {
  if (!is_subtitles(request.format)) {
    if (!request.output_dir.empty())
      throw ConfigError("--output_dir is for subtitles", "add --srt or --vtt, or use > FILE");
    return {};
  }
  const std::string extension = request.format == TranscriptFormat::kSrt ? ".srt" : ".vtt";
  if (request.output_dir.empty()) {
    const bool one = inputs.size() == 1 && !fs::is_directory(request.inputs.at(0));
    if (one) return {};
    throw ConfigError(
        fmt::format("subtitles of {} in one stream: their times all begin at 0",
                    inputs.size() == 1 ? "a folder" : fmt::format("{} files", inputs.size())),
        fmt::format("--output_dir FOLDER writes FOLDER/NAME{} for each", extension));
  }
  std::map<std::string, fs::path> files;
  std::map<fs::path, std::string> taken;
  for (const Input& input : inputs) {
    const fs::path file = request.output_dir / (input.place.string() + extension);
    if (const auto [other, is_new] = taken.emplace(file, input.name); !is_new)
      throw ConfigError(fmt::format("{} and {} would both be written to {}", other->second,
                                    input.name, file.string()),
                        "give them to two commands with an --output_dir each");
    files[input.name] = file;
  }
  for (const auto& [name, file] : files) make_folders(file.parent_path());
  return files;
}

// What each input is called in CTM, by its name: as its subtitles are, with `_` for blanks, which part the columns.
std::map<std::string, std::string> ctm_names(const TranscribeRequest& request,
                                             const std::vector<Input>& inputs) {
  std::map<std::string, std::string> names, taken;
  if (request.format != TranscriptFormat::kCtm) return names;
  for (const Input& input : inputs) {
    std::string name = input.place.string();
    std::replace_if(
        name.begin(), name.end(), [](unsigned char c) { return std::isspace(c) != 0; }, '_');
    if (const auto [other, is_new] = taken.emplace(name, input.name); !is_new)
      throw ConfigError(fmt::format("{} and {} would both be called {} in the CTM", other->second,
                                    input.name, name),
                        "give them to two commands, or name the folder that holds both");
    names[input.name] = name;
  }
  return names;
}

config::Node read_overrides(const TranscribeRequest& request) {
  std::vector<std::string> words = request.options;
  if (!request.device.empty()) words.push_back("device=" + request.device);
  if (is_subtitles(request.format) || request.format == TranscriptFormat::kCtm)
    words.emplace_back("token_times=true");
  config::Problems problems;
  config::ValuePtr root = config::from_json(Json::object()).value();
  for (const std::string& text : words) root = config::apply_override(root, "++" + text, problems);
  problems.throw_if_any();
  return config::Node(root);
}

// What was printed: a signal waits for the file that is being written, and tells how many there are.
struct Printed {
  std::timed_mutex busy;
  std::atomic<std::size_t> num_files = 0;
};

// Ends the process. Nothing is half written; who reads stdout may have stopped reading, though.
[[noreturn]] void leave(int signal, const TranscribeRequest& request, std::size_t num_files,
                        Printed& printed) {
  const std::unique_lock whole(printed.busy, std::chrono::seconds(2));
  if (whole) std::fflush(stdout);
  const char* way_on = request.output_dir.empty() ? "the same command begins again"
                       : request.only_missing     ? "the same command goes on"
                                                  : "the same command with --missing goes on";
  log::info("stopped by {} after {} of {} files; {}", signal_name(signal), printed.num_files.load(),
            num_files, way_on);
  std::_Exit(
      static_cast<int>(signal == SIGINT ? ExitCode::kInterrupted : ExitCode::kStoppedResumable));
}

class Transcriber {
 public:
  Transcriber(Recognizer recognizer, TranscriptFormat format,
              std::map<std::string, fs::path> subtitle_files,
              std::map<std::string, std::string> ctm_names, std::size_t num_files, Printed& printed)
      : recognizer_(std::move(recognizer)),
        units_(units_of(recognizer_.speech2text->codec().tokens())),
        format_(format),
        subtitle_files_(std::move(subtitle_files)),
        ctm_names_(std::move(ctm_names)),
        printed_(printed) {
    batch_size_ = std::max(kLeastAhead, recognizer_.speech2text->options().batch_size);
    // Lines on a terminal show by themselves how far it is.
    if (::isatty(STDOUT_FILENO) == 0) progress_.emplace("transcribing files", num_files);
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
      if (progress_) progress_->add();
    }
    if (held_.size() >= batch_size_ || held_s_ >= kReadAhead_s) flush();
  }

  void flush() {
    std::vector<speech::Speech2Text::Waveform> waveforms;
    for (const auto& sample : held_) waveforms.emplace_back(sample.speech);
    const auto found = recognizer_.speech2text->decode_waveforms(waveforms);
    for (std::size_t i = 0; i < held_.size(); ++i) {
      if (!found[i].problem.empty()) {
        refuse(held_[i].uid, found[i].problem);
        continue;
      }
      const std::lock_guard lock(printed_.busy);
      print(held_[i], found[i]);
      ++printed_.num_files;
    }
    std::fflush(stdout);
    if (progress_) progress_->add(held_.size());
    held_.clear();
    held_s_ = 0;
  }

  std::size_t num_refused() const { return num_refused_; }

 private:
  void refuse(const std::string& file, std::string why) {
    ++num_refused_;
    if (why.compare(0, file.size(), file) != 0) why = file + ": " + why;
    log::status("");  // the bar is drawn again
    fmt::print(stderr, "{}\n", why);
    if (format_ == TranscriptFormat::kJson)
      fmt::print("{}\n", to_json_line({{"file", bytes_to_json(file)}, {"error", why}}));
    // Subtitles of an earlier run would look like those of this one.
    if (const auto found = subtitle_files_.find(file); found != subtitle_files_.end())
      fs::remove(found->second);
  }

  void print_subtitles(const std::string& file, const std::vector<Cue>& cues) const {
    const std::string text = format_ == TranscriptFormat::kSrt ? to_srt(cues) : to_vtt(cues);
    if (cues.empty())
      log::warning(
          "{}: no words were heard{}", file,
          subtitle_files_.empty() ? "" : "; no lines in " + subtitle_files_.at(file).string());
    if (subtitle_files_.empty()) {
      fmt::print("{}", text);
      return;
    }
    write_file_atomic(subtitle_files_.at(file), text);
    fmt::print("{} {}\n", file, subtitle_files_.at(file).string());
  }

  void print(const data::Sample& sample, const speech::Recognised& found) {
    const double seconds = static_cast<double>(sample.speech.size()) / sample.sample_rate;
    switch (format_) {
      case TranscriptFormat::kText:
        fmt::print("{} {}\n", sample.uid, found.nbest.at(0).text);
        return;
      case TranscriptFormat::kJson: {
        Json line = {{"file", bytes_to_json(sample.uid)}, {"text", found.nbest.at(0).text}};
        Json fields = recognition_fields(found);
        fields.erase("hyp");
        line.update(fields);
        line["seconds"] = round_time(seconds);
        fmt::print("{}\n", to_json_line(line));
        return;
      }
      case TranscriptFormat::kSrt:
      case TranscriptFormat::kVtt:
        print_subtitles(sample.uid, make_cues(found, seconds, units_));
        return;
      case TranscriptFormat::kCtm: {
        const auto words = timed_words(found.nbest.at(0), units_);
        if (words.empty() && !found.nbest.at(0).text.empty())
          refuse(sample.uid, "no times: the model has no CTC to tell them");
        else
          fmt::print("{}", to_ctm(ctm_names_.at(sample.uid), words));
        return;
      }
    }
  }

  Recognizer recognizer_;
  const Units units_;
  const TranscriptFormat format_;
  const std::map<std::string, fs::path> subtitle_files_;
  const std::map<std::string, std::string> ctm_names_;
  Printed& printed_;
  std::size_t batch_size_ = kLeastAhead;
  std::vector<data::Sample> held_;
  double held_s_ = 0;
  std::size_t num_refused_ = 0;
  std::optional<ProgressBar> progress_;
};

}  // namespace

std::size_t transcribe(const TranscribeRequest& request) {
  refuse_missing_model(request.model, "--model");
  std::vector<Input> inputs;
  for (const std::string& word : request.inputs) add_input(word, inputs);
  if (inputs.empty())
    throw ConfigError("no audio files given", "tutti infer --model PACK audio.wav...");
  const auto subtitles = subtitle_files(request, inputs);
  const auto called = ctm_names(request, inputs);
  if (request.only_missing) {
    std::erase_if(inputs, [&](const Input& input) { return fs::exists(subtitles.at(input.name)); });
    if (inputs.empty()) log::info("every file has subtitles in {}", request.output_dir.string());
    if (inputs.empty()) return 0;
  }
  Printed printed;
  trainer::StopSignals signals(0);
  signals.while_starting([&](int signal) { leave(signal, request, inputs.size(), printed); });
  Transcriber transcriber(load_packed_recognizer(request.model, read_overrides(request), 0),
                          request.format, subtitles, called, inputs.size(), printed);
  for (const Input& input : inputs) transcriber.add(input);
  transcriber.flush();
  return transcriber.num_refused();
}

}  // namespace tutti::systems
