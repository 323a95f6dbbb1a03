// Recordings through OWSM and OWSM-CTC from the command line: subtitles that keep every word and their limits, and
// numbers only where something was scored.
#include <gmock/gmock.h>

#include <sys/stat.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>

#include "tests/places.h"
#include "tests/systems/published_model.h"
#include "tutti/data/validate.h"

namespace tutti::systems {
namespace {

using testing::HasSubstr;

struct Line {
  double begin = 0;
  double end = 0;
  std::string text;
};

std::vector<Line> parse_srt(const std::string& srt) {
  std::vector<Line> lines;
  for (const auto& line : split(srt, '\n')) {
    std::array<int, 8> n{};
    if (std::sscanf(line.c_str(), "%d:%d:%d,%d --> %d:%d:%d,%d", &n[0], &n[1], &n[2], &n[3], &n[4],
                    &n[5], &n[6], &n[7]) == 8)
      lines.push_back({n[0] * 3600 + n[1] * 60 + n[2] + n[3] / 1000.0,
                       n[4] * 3600 + n[5] * 60 + n[6] + n[7] / 1000.0, ""});
    else if (!lines.empty() && lines.back().text.empty())
      lines.back().text = line;
  }
  return lines;
}

class Talks : public Published {
 protected:
  std::string sound(const std::string& name, int seed, std::size_t samples) const {
    data::write_wav(here() / name, {.samples = test_sound(seed, samples), .sample_rate = 16000});
    return name;
  }
  CommandResult infer(const std::string& family, std::vector<std::string> words) const {
    words.insert(words.begin(),
                 {"infer", "--model", folder_of(family).string(), "--device", "cpu"});
    return run(words);
  }
  // The subtitles of one file have the words of its text, and what docs/decoding.md says of them.
  void expect_whole_subtitles(const std::string& family, std::vector<std::string> words) const {
    words.emplace_back("--json");
    const CommandResult json = infer(family, words);
    ASSERT_TRUE(json.ok()) << json.describe();
    const Json found = parse_json(json.out, "stdout");
    words.back() = "--srt";
    const CommandResult srt = infer(family, words);
    ASSERT_TRUE(srt.ok()) << srt.describe();
    double last = 0;
    std::vector<std::string> said;
    for (const Line& line : parse_srt(srt.out)) {
      EXPECT_GE(line.begin, last) << srt.out;
      EXPECT_GT(line.end, line.begin) << srt.out;
      EXPECT_LE(line.end - line.begin, 7.001) << srt.out;
      EXPECT_LE(data::split_characters(line.text).size(), 84U) << srt.out;
      last = line.end;
      said.push_back(line.text);
    }
    EXPECT_LE(last, found["seconds"].get<double>() + 0.005) << srt.out;
    EXPECT_NE(found["text"], "") << json.out;
    EXPECT_EQ(split_words(join(said, " ")), split_words(found["text"].get<std::string>()));
  }
};

// OWSM's random weights name times anywhere in the window, also behind the end of the recording.
TEST_F(Talks, NoWordIsLostBehindTheEndOfTheRecording) {
  const std::vector<std::string> timed = {"predict_time=true", "beam_size=3", "maxlenratio=-10"};
  const auto with = [&](const std::string& file) {
    auto words = timed;
    words.push_back(file);
    return words;
  };
  for (const std::string& file : write_sounds("s2t")) expect_whole_subtitles("owsm", with(file));
  expect_whole_subtitles("owsm", with(sound("long.wav", 5, 16000 * 75)));
}

TEST_F(Talks, LongTextsAreCutIntoLinesThatCanBeRead) {
  const std::string file = sound("half_minute.wav", 3, 16000 * 29);
  expect_whole_subtitles("owsm", {"beam_size=1", "maxlenratio=-60", file});
  // It says <1.52> one <11.54>.
  expect_whole_subtitles("owsm", {"predict_time=true", "beam_size=3", "maxlenratio=-10",
                                  sound("drawn_out.wav", 12, 427631)});
  expect_whole_subtitles("owsm_ctc", {file});
  expect_whole_subtitles("owsm_ctc", {sound("talk.wav", 5, 16000 * 100)});
}

TEST_F(Talks, WithoutWordsTheFileIsEmptyAndALineSaysSo) {
  fs::create_directories(here() / "talks");
  sound("talks/silence.wav", 1, 16000);
  const auto result = infer("conformer", {"beam_size=19", "ctc_weight=0", "penalty=-1000", "--srt",
                                          "--output_dir", "subtitles", "talks"});
  EXPECT_TRUE(result.ok()) << result.describe();
  EXPECT_EQ(read_file(here() / "subtitles/silence.srt"), "");
  EXPECT_THAT(result.err, HasSubstr("talks/silence.wav: no words were heard"));
}

// A text of characters may have no <space>, and tokens of several letters (<unk>).
TEST_F(Talks, CharactersAreNoWords) {
  const std::vector<std::string> search = {"beam_size=4", "ctc_weight=0.3", "maxlenratio=-10"};
  for (const std::string& file : write_sounds("asr")) {
    auto words = search;
    words.insert(words.end(), {file, "--json"});
    const Json found = parse_json(infer("conformer", words).out, "stdout");
    words.back() = "--ctm";
    const auto ctm = infer("conformer", words);
    ASSERT_TRUE(ctm.ok()) << ctm.describe();
    std::vector<std::string> said;
    for (const auto& line : split(trim(ctm.out), '\n')) said.push_back(split_words(line).at(4));
    EXPECT_EQ(said, split_words(found["text"].get<std::string>()));
  }
  expect_whole_subtitles("conformer",
                         {"beam_size=4", "ctc_weight=0.3", "maxlenratio=-10", "sound0.wav"});
}

// Files are read eight at a time, so the command has written eight when it waits for the ninth.
TEST_F(Talks, CtrlCTellsTheWayOn) {
  fs::create_directories(here() / "talks");
  for (int i = 1; i <= 8; ++i) sound("talks/" + std::to_string(i) + ".wav", i, 8000);
  const fs::path pipe = here() / "talks/9.wav";
  const auto stopped = [&](std::vector<std::string> words, const fs::path& written) {
    words.insert(words.begin(),
                 {in_bin("tutti"), "infer", "--model", folder_of("conformer").string(), "--device",
                  "cpu", "beam_size=1", "maxlenratio=-4"});
    for (int i = 1; i <= 9; ++i) words.push_back("talks/" + std::to_string(i) + ".wav");
    EXPECT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    fs::remove(here() / "err");
    Process command = Process::start({.argv = words,
                                      .cwd = here(),
                                      .stdout_path = here() / "out",
                                      .stderr_path = here() / "err"});
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (!fs::exists(written) || fs::file_size(written) == 0 ||
           split(trim(read_file(here() / "out")), '\n').size() < 8) {
      if (command.wait_for(std::chrono::milliseconds(20)) ||
          std::chrono::steady_clock::now() > deadline)
        break;
    }
    command.signal_group(SIGINT);
    const auto ended = command.wait_for(std::chrono::minutes(1));
    EXPECT_TRUE(ended && ended->exit_code == 130) << (ended ? ended->describe() : "it goes on");
    fs::remove(pipe);
    return read_file(here() / "err");
  };
  EXPECT_THAT(stopped({}, here() / "out"),
              HasSubstr("stopped by SIGINT after 8 of 9 files; the same command begins again"));
  fs::remove(here() / "out");
  EXPECT_THAT(
      stopped({"--vtt", "--output_dir", "subtitles"}, here() / "subtitles/8.vtt"),
      HasSubstr("stopped by SIGINT after 8 of 9 files; the same command with --missing goes on"));
  sound("talks/9.wav", 9, 8000);
  const auto rest = infer("conformer", {"beam_size=1", "maxlenratio=-4", "--vtt", "--output_dir",
                                        "subtitles", "--missing", "talks"});
  EXPECT_TRUE(rest.ok()) << rest.describe();
  EXPECT_EQ(rest.out, "talks/9.wav subtitles/9.vtt\n");
}

TEST_F(Talks, WhatNobodyScoredHasNoScore) {
  const std::string file = sound("long.wav", 5, 16000 * 40);
  const auto both = [](const std::string& family) {
    return family == "owsm"
               ? std::vector<std::string>{"predict_time=true", "beam_size=1", "maxlenratio=-6"}
               : std::vector<std::string>{};
  };
  for (const std::string family : {"owsm", "owsm_ctc"}) {
    auto words = both(family);
    words.insert(words.end(), {"--json", file});
    const auto result = infer(family, words);
    ASSERT_TRUE(result.ok()) << result.describe();
    const Json found = parse_json(result.out, "stdout");
    EXPECT_TRUE(found.at("score").is_null()) << result.out;
    EXPECT_TRUE(found.at("confidence").is_null()) << result.out;
  }
  // CTM's last column is optional.
  const auto ctm = infer("owsm_ctc", {"--ctm", file});
  ASSERT_TRUE(ctm.ok()) << ctm.describe();
  for (const auto& line : split(trim(ctm.out), '\n')) EXPECT_EQ(split_words(line).size(), 5U);
  const auto shorter = infer("owsm_ctc", {"--ctm", sound("short.wav", 5, 16000 * 4)});
  for (const auto& line : split(trim(shorter.out), '\n')) EXPECT_EQ(split_words(line).size(), 6U);

  write_file_atomic(here() / "wav.scp", "talk " + (here() / file).string() + "\n");
  write_file_atomic(here() / "inference.yaml",
                    "model: {_target_: espnet2.bin.s2t_inference_ctc.Speech2TextGreedySearch, "
                    "device: cpu, model_tag: " +
                        folder_of("owsm_ctc").string() +
                        "}\ndataset: {test: [{name: t, data_src_args: {wav_scp: wav.scp}}]}\n"
                        "recipe_dir: .\ndata_dir: .\nexp_dir: exp\ninference_dir: out\n"
                        "output_keys: [hyp, score]\nparallel: {env: local, n_workers: 1}\n");
  const auto stage = run({"infer", "--config", "inference.yaml"});
  ASSERT_TRUE(stage.ok()) << stage.describe();
  EXPECT_TRUE(parse_json(read_file(here() / "out/t/results.jsonl"), "results")["result"]
                  .at("score")
                  .is_null());
  EXPECT_EQ(read_file(here() / "out/t/1best_recog/score"), "talk\n");
  EXPECT_EQ(read_file(here() / "out/t/score.scp"), "talk null\n");
}

}  // namespace
}  // namespace tutti::systems
