// `tutti infer --model PACK`: files, folders and lists in, text, JSON and subtitles out; bad audio is
// named in every stage, and long recordings take bounded memory.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <limits>

#include "tests/systems/built_recipe.h"
#include "tutti/core/json.h"
#include "tutti/core/text.h"
#include "tutti/data/io/audio.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

std::vector<float> tone(double seconds) {
  std::vector<float> samples(static_cast<std::size_t>(16000 * seconds));
  for (std::size_t i = 0; i < samples.size(); ++i)
    samples[i] = 0.3F * std::sin(0.1F * static_cast<float>(i));
  return samples;
}

class Transcribe : public BuiltRecipe {
 protected:
  std::string pack() const { return (path_ / kExp / "model_pack").string(); }
  std::string audio(const std::string& name, const std::vector<float>& samples) const {
    fs::create_directories(path_ / "audio");
    data::write_wav(path_ / "audio" / name, {samples, 16000});
    return (path_ / "audio" / name).string();
  }
  // One file of each kind that nobody can decode.
  void make_bad_files() const {
    const std::string good = read_file(audio("good.wav", tone(1)));
    write("audio/cut.wav", good.substr(0, good.size() / 2));
    write("audio/text.wav", "this is no audio\n");
    auto samples = tone(1);
    samples[500] = std::numeric_limits<float>::quiet_NaN();
    write_float_wav(path_ / "audio/nan.wav", samples);
    samples[500] = std::numeric_limits<float>::infinity();
    write_float_wav(path_ / "audio/inf.wav", samples);
    audio("silent.wav", std::vector<float>(16000));
    audio("short.wav", tone(0.01));
  }
  static constexpr const char* kBad[] = {"cut", "text", "nan", "inf", "silent", "short"};
};

TEST_F(Transcribe, APackRemembersItsSettingsAndTakesOthers) {
  EXPECT_THAT(read(std::string(kExp) + "model_pack/decoding.yaml"), HasSubstr("beam_size: 1"));
  const std::string good = audio("good.wav", tone(1.5));
  const CommandResult plain = run({"infer", "--model", pack(), good});
  ASSERT_TRUE(plain.ok()) << plain.describe();
  EXPECT_THAT(plain.out, HasSubstr(good + " "));
  const CommandResult wide = run(
      {"infer", "--model", pack(), "--device", "cpu", "--json", "beam_size=50", "nbest=3", good});
  ASSERT_TRUE(wide.ok()) << wide.describe();
  EXPECT_THAT(wide.err, HasSubstr("beam_size: 50 is more than the 30 tokens"));
  const Json found = parse_json(wide.out, "stdout");
  EXPECT_EQ(found["file"], good);
  EXPECT_EQ(found["seconds"], 1.5);
  EXPECT_EQ(found["nbest"].size(), 3U);
  EXPECT_TRUE(found["nbest"][0]["token_ids"].is_array());
  EXPECT_LE(found["confidence"].get<double>(), 1.0);
  const CommandResult slip = run({"infer", "--model", pack(), "beem_size=3", good});
  EXPECT_EQ(slip.exit_code, 2);
  EXPECT_THAT(slip.err, HasSubstr("did you mean 'beam_size'"));
  // What only a recipe's stage reads is not passed over.
  const std::vector<std::vector<std::string>> others = {{"--config", "absent.yaml"},
                                                        {"--training_config", "absent.yaml"},
                                                        {"--parallel", "gpu"},
                                                        {"--force"},
                                                        {"--dry_run"}};
  for (const auto& other : others) {
    std::vector<std::string> line = {"infer", "--model", pack(), good};
    line.insert(line.end(), other.begin(), other.end());
    const CommandResult refused = run(line);
    EXPECT_EQ(refused.exit_code, 2) << refused.describe();
    EXPECT_THAT(refused.err, HasSubstr("excludes"));
    EXPECT_THAT(refused.err, HasSubstr(other[0]));
    EXPECT_EQ(refused.out, "");
  }
}

TEST_F(Transcribe, ABadFileIsNamedAndTheRestGoesOn) {
  make_bad_files();
  const std::string after = audio("z_after.wav", tone(1.2));
  const CommandResult result = run(
      {"infer", "--model", pack(), (path_ / "audio").string(), (path_ / "absent.wav").string()});
  EXPECT_EQ(result.exit_code, 7) << result.describe();
  EXPECT_THAT(result.out, HasSubstr("good.wav "));
  EXPECT_THAT(result.out, HasSubstr(after));
  for (const char* bad : kBad) {
    EXPECT_THAT(result.err, HasSubstr(std::string(bad) + ".wav: ")) << bad;
    EXPECT_THAT(result.out, Not(HasSubstr(std::string(bad) + ".wav"))) << bad;
  }
  EXPECT_THAT(result.err, HasSubstr("absent.wav"));
  EXPECT_THAT(result.err, HasSubstr("cut short"));
}

TEST_F(Transcribe, WhatHasToBeConvertedComesWithTheCommand) {
  const std::string bytes = std::string(4, '\0') + "ftypM4A " + std::string(40, '\0');
  fs::create_directories(path_ / "audio");
  write("audio/talk.m4a", bytes);
  const std::string file = (path_ / "audio/talk.m4a").string();
  const std::string command = "ffmpeg -i " + shell_quote(file) + " " +
                              shell_quote((path_ / "audio/talk.wav").string()) + "\n";
  const CommandResult named = run({"infer", "--model", pack(), file});
  EXPECT_EQ(named.exit_code, 7) << named.describe();
  EXPECT_THAT(named.err, HasSubstr("talk.m4a: MPEG-4 (m4a, mp4), which is not read here"));
  EXPECT_THAT(named.err, HasSubstr(command));
  const CommandResult piped = run({"infer", "--model", pack(), "-"}, bytes);
  EXPECT_EQ(piped.exit_code, 7) << piped.describe();
  EXPECT_THAT(piped.err, HasSubstr("MPEG-4"));
  const std::string folder = (path_ / "audio").string();
  const CommandResult alone = run({"infer", "--model", pack(), folder});
  EXPECT_EQ(alone.exit_code, 3) << alone.describe();
  EXPECT_THAT(alone.err, HasSubstr("no audio files in this folder, but 1 file of a format"));
  EXPECT_THAT(alone.err, HasSubstr(command));
  audio("good.wav", tone(1));
  const CommandResult both = run({"infer", "--model", pack(), folder});
  EXPECT_TRUE(both.ok()) << both.describe();
  EXPECT_THAT(both.err, HasSubstr("passing over 1 file"));
}

TEST_F(Transcribe, WritesSubtitlesAndCtmAndReadsLists) {
  const std::string a = audio("a.wav", tone(1)), b = audio("b.wav", tone(2));
  const CommandResult list = run({"infer", "--model", pack(), "-"}, a + "\n" + b + "\n");
  ASSERT_TRUE(list.ok()) << list.describe();
  EXPECT_EQ(split(trim(list.out), '\n').size(), 2U);
  const CommandResult piped = run({"infer", "--model", pack(), "-", "--json"}, read_file(a));
  ASSERT_TRUE(piped.ok()) << piped.describe();
  EXPECT_EQ(parse_json(piped.out, "stdout")["file"], "-");

  std::vector<std::string> ask = {"infer",           "--model",         pack(),
                                  "minlenratio=0.2", "maxlenratio=0.3", b};
  const auto as = [&](const char* format) {
    auto words = ask;
    words.emplace_back(format);
    const CommandResult result = run(words);
    EXPECT_TRUE(result.ok()) << result.describe();
    return result.out;
  };
  EXPECT_THAT(as("--srt"), testing::ContainsRegex("1\n00:00:0[0-9],[0-9]+ --> 00:00:0[0-9],"));
  EXPECT_THAT(as("--vtt"), testing::StartsWith("WEBVTT\n\n00:00:0"));
  ask.push_back(a);
  for (const auto& line : split(trim(as("--ctm")), '\n')) {
    const auto fields = split_words(line);
    ASSERT_EQ(fields.size(), 6U) << line;
    EXPECT_TRUE(fields[0] == "a" || fields[0] == "b");
    EXPECT_LE(std::stod(fields[2]) + std::stod(fields[3]), 2.1);
  }
  // A file in which nothing is heard is not left out.
  ask = {"infer", "--model", pack(), "beam_size=30", "penalty=-1000", a};
  EXPECT_EQ(as("--ctm"), ";; a: no words\n");
}

TEST_F(Transcribe, NamesWithBlanksAndBytesThatAreNoText) {
  const std::string odd = audio("a\xff.wav", tone(1)), blank = audio("my talk.wav", tone(2));
  const CommandResult json = run({"infer", "--model", pack(), "--json", odd});
  ASSERT_TRUE(json.ok()) << json.describe();
  EXPECT_EQ(bytes_from_json(parse_json(json.out, "stdout")["file"]), odd);
  const CommandResult missing = run({"infer", "--model", pack(), "--json", odd + "x"});
  EXPECT_EQ(bytes_from_json(parse_json(missing.out, "stdout")["file"]), odd + "x");
  const CommandResult ctm =
      run({"infer", "--model", pack(), "minlenratio=0.2", "maxlenratio=0.3", "--ctm", blank});
  ASSERT_TRUE(ctm.ok()) << ctm.describe();
  for (const auto& line : split(trim(ctm.out), '\n')) {
    const auto fields = split_words(line);
    ASSERT_EQ(fields.size(), 6U) << line;
    EXPECT_EQ(fields[0], "my_talk");
  }
}

TEST_F(Transcribe, NoTwoFilesHaveOneNameInCtm) {
  const std::string a = audio("a.wav", tone(2));
  fs::create_directories(path_ / "audio/more");
  fs::copy_file(a, path_ / "audio/more/a.wav");
  const std::string folder = (path_ / "audio").string();
  const std::vector<std::string> ask = {"infer", "--model",         pack(),
                                        "--ctm", "minlenratio=0.2", "maxlenratio=0.3"};
  const auto with = [&](std::vector<std::string> inputs) {
    inputs.insert(inputs.begin(), ask.begin(), ask.end());
    return run(inputs);
  };
  const CommandResult both = with({folder});
  ASSERT_TRUE(both.ok()) << both.describe();
  EXPECT_THAT(both.out, testing::StartsWith("a 1 "));
  EXPECT_THAT(both.out, HasSubstr("\nmore/a 1 "));
  const CommandResult clash = with({a, folder + "/more/a.wav"});
  EXPECT_EQ(clash.exit_code, 2) << clash.describe();
  EXPECT_EQ(clash.out, "");
  EXPECT_THAT(clash.err, HasSubstr("would both be called a in the CTM"));
  audio("a b.wav", tone(1));
  audio("a_b.wav", tone(1));
  EXPECT_THAT(with({folder}).err, HasSubstr("would both be called a_b in the CTM"));
}

TEST_F(Transcribe, SubtitlesOfSeveralFilesAreFilesOfTheirOwn) {
  audio("a.wav", tone(1));
  audio("b.wav", tone(2));
  write("audio/bad.wav", "this is no audio\n");
  const std::string folder = (path_ / "audio").string(), out = (path_ / "subtitles").string();
  const std::vector<std::string> ask = {"infer",           "--model",         pack(),
                                        "minlenratio=0.2", "maxlenratio=0.3", folder};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), ask.begin(), ask.end());
    return run(more);
  };
  for (const char* format : {"--srt", "--vtt"}) {
    const CommandResult refused = with({format});
    EXPECT_EQ(refused.exit_code, 2) << refused.describe();
    EXPECT_EQ(refused.out, "");
    EXPECT_THAT(refused.err, HasSubstr("--output_dir"));
  }
  fs::create_directories(path_ / "subtitles");
  write("subtitles/bad.srt", "of an earlier run\n");
  const CommandResult srt = with({"--srt", "--output_dir", out});
  EXPECT_EQ(srt.exit_code, 7) << srt.describe();
  EXPECT_EQ(srt.out, fmt::format("{0}/a.wav {1}/a.srt\n{0}/b.wav {1}/b.srt\n", folder, out));
  EXPECT_THAT(srt.err, HasSubstr("bad.wav: "));
  for (const char* name : {"subtitles/a.srt", "subtitles/b.srt"})
    EXPECT_THAT(read(name), testing::StartsWith("1\n00:00:0")) << name;
  EXPECT_FALSE(fs::exists(path_ / "subtitles/bad.srt"));
  EXPECT_EQ(with({"--vtt", "--output_dir", out}).exit_code, 7);
  for (const char* name : {"subtitles/a.vtt", "subtitles/b.vtt"})
    EXPECT_THAT(read(name), testing::StartsWith("WEBVTT\n\n00:00:0")) << name;

  // A recording came; what is there is left alone, what failed is tried again.
  fs::create_directories(path_ / "audio/more");
  fs::copy_file(path_ / "audio/a.wav", path_ / "audio/more/a.wav");
  write("subtitles/a.srt", "corrected by hand\n");
  const CommandResult more = with({"--srt", "--output_dir", out, "--missing"});
  EXPECT_EQ(more.exit_code, 7) << more.describe();
  EXPECT_EQ(more.out, fmt::format("{}/more/a.wav {}/more/a.srt\n", folder, out));
  EXPECT_EQ(read("subtitles/a.srt"), "corrected by hand\n");
  fs::remove(path_ / "audio/bad.wav");
  const CommandResult nothing = with({"--srt", "--output_dir", out, "--missing"});
  EXPECT_TRUE(nothing.ok()) << nothing.describe();
  EXPECT_EQ(nothing.out, "");
  EXPECT_THAT(nothing.err, HasSubstr("every file has subtitles"));

  fs::copy_file(path_ / "audio/a.wav", path_ / "audio/a.WAV");
  const CommandResult clash = with({"--srt", "--output_dir", out + "_2"});
  EXPECT_EQ(clash.exit_code, 2) << clash.describe();
  EXPECT_THAT(clash.err, HasSubstr("a.wav would both be written to"));
  EXPECT_FALSE(fs::exists(out + "_2"));
  const CommandResult text = with({"--output_dir", out});
  EXPECT_EQ(text.exit_code, 2) << text.describe();
  EXPECT_THAT(text.err, HasSubstr("add --srt or --vtt"));
}

TEST_F(Transcribe, TimesNBestAndEspnetsFilesReachTheResults) {
  const CommandResult result =
      infer({"+model.token_times=true", "+model.nbest=2", "model.beam_size=4",
             "+model.minlenratio=-3", "+model.maxlenratio=-6"});
  ASSERT_TRUE(result.ok()) << result.describe();
  const Json line = parse_json(split(read(std::string(kInference) + "test/results.jsonl"), '\n')[0],
                               "results.jsonl");
  const Json& found = line["result"];
  EXPECT_EQ(found["token_times"].size(), found["tokens"].size());
  EXPECT_EQ(found["nbest"].size(), 2U);
  // Two digits, so that no processor and no batch changes them.
  EXPECT_DOUBLE_EQ(std::round(found["score"].get<double>() * 100) / 100,
                   found["score"].get<double>());
  for (const char* file : {"text", "token", "token_int", "score"})
    for (const char* rank : {"1best_recog/", "2best_recog/"})
      EXPECT_EQ(num_lines(std::string(kInference) + "test/" + rank + file), 2U) << rank << file;
  EXPECT_THAT(read(std::string(kInference) + "test/1best_recog/score"),
              HasSubstr(found["score"].dump()));
}

class BadAudio : public Transcribe {
 protected:
  // The recipe's training set with one bad utterance in front.
  void train_with(const std::string& bad) const {
    write("data/bad.jsonl", to_json_line({{"id", "bad_one"},
                                          {"audio", (path_ / "audio" / (bad + ".wav")).string()},
                                          {"text", "GO"}}) +
                                "\n" + read("data/train.jsonl"));
    std::string text = read("conf/training_asr_transformer.yaml");
    const auto at = text.find("- {data_src");
    text.replace(at, text.find('\n', at) - at,
                 "- data_src_args: {manifest: \"${recipe_dir}/data/bad.jsonl\"}");
    write("conf/bad.yaml", text);
    write("conf/inference_bad.yaml",
          "recipe_dir: ${config_path:..}\ndataset:\n  test:\n    - {name: bad, data_src_args: "
          "{manifest: \"${recipe_dir}/data/bad.jsonl\"}}\nbatch_size: 4\nmodel:\n"
          "  _target_: espnet2.bin.asr_inference.Speech2Text\n"
          "  asr_train_config: ${exp_dir}/config.yaml\n"
          "  asr_model_file: ${exp_dir}/valid.loss.ave_10best.pth\n  beam_size: 1\n");
  }
  CommandResult try_stage(const std::string& stage, std::vector<std::string> more = {}) const {
    std::vector<std::string> words = {stage, "--training_config", conf("bad.yaml")};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
};

TEST_F(BadAudio, IsNamedInStatisticsAndDecodingByRule) {
  make_bad_files();
  for (const char* bad : kBad) {
    train_with(bad);
    const CommandResult stop = try_stage("collect_stats");
    EXPECT_NE(stop.exit_code, 0) << bad;
    EXPECT_THAT(stop.err, HasSubstr("bad_one")) << bad;
    EXPECT_THAT(stop.err, HasSubstr("leave it out: dataloader.train.on_bad=skip")) << bad;
    EXPECT_THAT(stop.err, testing::Not(HasSubstr("parallel.on_error"))) << bad;
    const CommandResult skip = try_stage("collect_stats", {"+dataloader.train.on_bad=skip"});
    EXPECT_TRUE(skip.ok()) << bad << skip.describe();
    EXPECT_THAT(skip.err, HasSubstr("1 of 5 utterances are left out")) << bad;
    EXPECT_EQ(num_lines("exp/stats/train/feats_shape"), 4U) << bad;
    EXPECT_THAT(read("exp/stats/.collect/train/failed.jsonl"), HasSubstr("bad_one")) << bad;
  }
  train_with("nan");
  const std::vector<std::string> decode = {"infer", "--training_config",
                                           conf("training_asr_transformer.yaml"),
                                           "--inference_config", conf("inference_bad.yaml")};
  const CommandResult stop = run(decode);
  EXPECT_NE(stop.exit_code, 0);
  EXPECT_THAT(stop.err, HasSubstr("bad_one"));
  auto words = decode;
  words.emplace_back("+on_bad=skip");
  const CommandResult skip = run(words);
  EXPECT_EQ(skip.exit_code, 7) << skip.describe();
  EXPECT_EQ(num_lines("exp/training_asr_transformer/inference_bad/bad/hyp.scp"), 4U);
  EXPECT_THAT(read("exp/training_asr_transformer/inference_bad/bad/failed.jsonl"),
              HasSubstr("not a number"));
}

TEST_F(BadAudio, NeverReachesTrainedWeights) {
  make_bad_files();
  for (const char* bad : {"nan", "short"}) {
    train_with(bad);
    // Shapes of all five, as if the file had been damaged since.
    ASSERT_TRUE(try_stage("collect_stats", {"+dataloader.train.on_bad=skip"}).ok());
    for (const char* file : {"feats_shape", "speech_shape", "text_shape"})
      write(std::string("exp/stats/train/") + file,
            "bad_one " +
                std::string(file[0] == 'f'   ? "100,80"
                            : file[0] == 's' ? "16000"
                                             : "2") +
                "\n" + read(std::string("exp/stats/train/") + file));
    const std::string tag = std::string("exp_tag=") + bad;
    const CommandResult stop = try_stage("train", {tag, "trainer.limit_train_batches=1.0"});
    EXPECT_EQ(stop.exit_code, 3) << stop.describe();
    EXPECT_THAT(stop.err, HasSubstr("bad_one")) << bad;
    EXPECT_THAT(stop.err, HasSubstr("on_bad: skip")) << bad;
    const CommandResult skip = try_stage(
        "train", {tag, "trainer.limit_train_batches=1.0", "+dataloader.train.on_bad=skip"});
    EXPECT_TRUE(skip.ok()) << bad << skip.describe();
    EXPECT_THAT(skip.err, HasSubstr("skipping bad_one")) << bad;
  }
}

TEST_F(Transcribe, AnHourTakesBoundedMemoryAndAnyBatchGivesTheSameWords) {
  // Bursts of sound with pauses between: the pauses are where it is cut.
  std::vector<float> hour(16000 * 3600);
  for (std::size_t i = 0; i < hour.size(); ++i) {
    const bool speaks = (i / 16000) % 9 < 6;
    const auto noise = static_cast<float>((i * 2654435761U) >> 16 & 0xff) / 255.0F - 0.5F;
    hour[i] =
        (speaks ? 0.4F * std::sin(0.05F * static_cast<float>(i % 16000)) : 0.0F) + 0.002F * noise;
  }
  const std::string file = audio("hour.wav", hour);
  hour.clear();
  hour.shrink_to_fit();
  const auto decode = [&](const char* batch) {
    const CommandResult result = run({"infer", "--model", pack(), "minlenratio=-2",
                                      "maxlenratio=-4", batch, "--device=cpu", "--json", file});
    EXPECT_TRUE(result.ok()) << result.describe();
    return parse_json(result.out, "stdout");
  };
  const Json one = decode("batch_size=1");
  struct rusage usage {};
  ::getrusage(RUSAGE_CHILDREN, &usage);
  EXPECT_LT(usage.ru_maxrss, 1000 * 1024) << "kB";
  EXPECT_EQ(one["seconds"], 3600);
  EXPECT_GT(one["segments"].size(), 60U);
  double end = 0;
  for (const auto& segment : one["segments"]) {
    EXPECT_GE(segment["begin"].get<double>(), end);
    end = segment["end"];
    EXPECT_LE(end - segment["begin"].get<double>(), 30.01);
  }
  const Json eight = decode("batch_size=8");
  EXPECT_EQ(one["text"], eight["text"]);
  EXPECT_EQ(one["token_ids"], eight["token_ids"]);
}

}  // namespace
}  // namespace tutti::systems
