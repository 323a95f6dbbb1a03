// What people do every day with one recipe folder: train more, decode again, kill, resume
// otherwise, try a second experiment, move it. Every test works in a copy of a finished recipe.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>

#include "tests/places.h"
#include "tests/systems/built_recipe.h"
#include "tutti/core/json.h"
#include "tutti/data/features/fbank.h"
#include "tutti/data/io/audio.h"
#include "tutti/data/io/npy.h"
#include "tutti/data/manifest.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class DailyLoop : public BuiltRecipe {
 protected:
  // A long test set, so that decoding can be interrupted.
  void make_many(int count) {
    const Json first = parse_json(split(read("data/valid.jsonl"), '\n')[0], "valid.jsonl");
    std::string lines;
    for (int i = 0; i < count; ++i) {
      Json line = first;
      line["id"] = "u" + std::to_string(1000 + i);
      lines += to_json_line(line) + "\n";
    }
    write("data/many.jsonl", lines);
    std::string text = read("conf/inference.yaml");
    const auto begin = text.find("dataset:"), end = text.find("\nmodel:");
    text.replace(begin, end - begin,
                 "dataset:\n  test:\n    - {name: many, data_src_args: {manifest: "
                 "\"${recipe_dir}/data/many.jsonl\"}}\n");
    write("conf/inference_many.yaml", text);
  }
  std::vector<std::string> many_command(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {in_bin("tutti"),
                                      "infer",
                                      "--training_config",
                                      conf("training_asr_transformer.yaml"),
                                      "--inference_config",
                                      conf("inference_many.yaml"),
                                      "inference_dir=" + (path_ / "D").string()};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // Kills the driver as soon as `reached` holds; its workers leave by themselves.
  void kill_when(const std::function<bool()>& reached) { kill_when(reached, many_command()); }
  void kill_when(const std::function<bool()>& reached, const std::vector<std::string>& command) {
    Process process =
        Process::start({.argv = command, .cwd = path_, .stdout_path = path_ / "killed.log"});
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    while (!reached() && !process.poll() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    ::kill(process.pid(), SIGKILL);
    process.wait();
  }
  std::size_t num_journaled() const {
    std::error_code absent;  // not yet
    std::size_t num_bytes = 0;
    for (const auto& file : fs::directory_iterator(path_ / "D/many/journal", absent))
      num_bytes += static_cast<std::size_t>(file.file_size());
    return num_bytes;
  }
  void expect_whole(std::size_t count) {
    std::size_t ok = 0;
    for (const auto& line : split(trim(read("D/many/results.jsonl")), '\n'))
      ok += parse_json(line, "results.jsonl")["status"] == "ok" ? 1 : 0;
    EXPECT_EQ(ok, count);
  }
};

TEST_F(DailyLoop, TheSameAgainIsSkippedAlsoAtAnotherPlace) {
  const std::string before = read(std::string(kInference) + "test/results.jsonl");
  for (const char* stage :
       {"create_dataset", "validate_dataset", "train_tokenizer", "collect_stats", "train"}) {
    const CommandResult result = this->stage(stage);
    ASSERT_TRUE(result.ok()) << result.describe();
    EXPECT_THAT(result.err, HasSubstr(std::string(stage) + ": up to date, skipped"));
  }
  const CommandResult again = infer();
  ASSERT_TRUE(again.ok()) << again.describe();
  EXPECT_THAT(again.err, HasSubstr("test: up to date, skipped"));
  EXPECT_EQ(read(std::string(kInference) + "test/results.jsonl"), before);

  const CommandResult fresh = infer({"inference_dir=" + (path_ / "F").string()});
  ASSERT_TRUE(fresh.ok()) << fresh.describe();
  EXPECT_EQ(read("F/test/results.jsonl"), before);
}

TEST_F(DailyLoop, AStageWhoseOutputIsGoneRuns) {
  const std::pair<const char*, const char*> cases[] = {
      {"create_dataset", "data/train.jsonl"},
      {"train_tokenizer", "data/bpe_30/tokens.txt"},
      {"train_tokenizer", "data/bpe_30/bpe.model"},
      {"collect_stats", "exp/stats/train/feats_stats.npz"}};
  for (const auto& [stage, file] : cases) {
    fs::remove(path_ / file);
    const CommandResult again = this->stage(stage);
    ASSERT_TRUE(again.ok()) << again.describe();
    EXPECT_THAT(again.err, HasSubstr(std::string(fs::path(file).filename()) + " is gone"));
    EXPECT_TRUE(has(file)) << file;
    EXPECT_THAT(this->stage(stage).err, HasSubstr("up to date, skipped"));
  }
}

TEST_F(DailyLoop, ACopyUnderAnotherNameAndARenamedOneReadTheirOwnFiles) {
  EXPECT_THAT(read(std::string(kExp) + "config.yaml"), Not(HasSubstr("//")));
  const RecipeFolder original("mini_an4");  // which stays where it was made
  build_mini_an4(original);
  path_ = path_.parent_path() / "renamed";
  copy_recipe(original.path(), path_);
  const CommandResult again = infer();
  ASSERT_TRUE(again.ok()) << again.describe();
  EXPECT_THAT(again.err, HasSubstr("valid: up to date, skipped"));
  EXPECT_THAT(again.err, HasSubstr("test: up to date, skipped"));

  const std::string file = std::string(kExp) + "tokens.txt", tokens = read(file);
  write(file, tokens.substr(0, tokens.size() - 1) + "_other\n");
  const CommandResult own = infer();
  EXPECT_THAT(own.err, HasSubstr("other content")) << "the original's tokens are read";

  write(file, tokens);
  fs::rename(original.path(), original.path().string() + ".hidden");
  const CommandResult anew = infer({"model.beam_size=2"});
  ASSERT_TRUE(anew.ok()) << anew.describe();
  EXPECT_EQ(num_lines(std::string(kInference) + "test/hyp.scp"), 2U);
}

TEST_F(DailyLoop, MoreTrainingIsDecodedAgainAndTheOldResultsAreKept) {
  const std::string before = read(std::string(kInference) + "test/results.jsonl");
  const CommandResult more = stage("train", {"trainer.max_epochs=2"});
  ASSERT_TRUE(more.ok()) << more.describe();
  const CommandResult again = infer();
  ASSERT_TRUE(again.ok()) << again.describe();
  EXPECT_THAT(again.err, HasSubstr("test: asr_model_file: other content; the work is done anew"));
  EXPECT_NE(read(std::string(kInference) + "test/results.jsonl"), before);
  EXPECT_EQ(read(std::string(kInference) + "test.old/results.jsonl"), before);
  ASSERT_TRUE(infer({"inference_dir=" + (path_ / "F").string()}).ok());
  EXPECT_EQ(read(std::string(kInference) + "test/results.jsonl"), read("F/test/results.jsonl"));
  // What was set aside is no test set.
  const CommandResult scored =
      run({"measure", "--training_config", conf("training_asr_transformer.yaml"),
           "--inference_config", conf("inference.yaml"), "--metrics_config", conf("metrics.yaml")});
  ASSERT_TRUE(scored.ok()) << scored.describe();
  EXPECT_THAT(read(std::string(kInference) + "metrics.json"), Not(HasSubstr("test.old")));
}

TEST_F(DailyLoop, AnAverageThatTrainingHasLeftBehindOrThatIsDamagedIsMadeAnew) {
  const fs::path folder = path_ / kExp / "checkpoints";
  const auto averages = [&] {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.path().filename().string().find(".ave_") != std::string::npos)
        files[entry.path().filename().string()] = read_file(entry.path());
    return files;
  };
  const auto before = averages();
  ASSERT_EQ(before.size(), 3U);  // .safetensors, .pth and .json
  const CommandResult more = stage("train", {"trainer.max_epochs=2"});
  ASSERT_TRUE(more.ok()) << more.describe();
  const auto now = averages();
  ASSERT_NE(now, before);
  // What a run that was killed in its second epoch leaves.
  for (const auto& [name, content] : now) fs::remove(folder / name);
  for (const auto& [name, content] : before) write_file_atomic(folder / name, content);
  const CommandResult again = infer();
  ASSERT_TRUE(again.ok()) << again.describe();
  EXPECT_THAT(again.err, testing::AllOf(HasSubstr("averaged anew from the best epochs so far"),
                                        HasSubstr("training went on after it was made"),
                                        HasSubstr("test: asr_model_file: other content")));
  EXPECT_TRUE(averages() == now);

  for (const auto& [name, content] : now)
    if (name.ends_with(".safetensors")) {
      std::string damaged = content;
      damaged[damaged.size() - 3] ^= 1;
      write_file_atomic(folder / name, damaged);
    }
  const CommandResult packed = stage("pack_model");
  ASSERT_TRUE(packed.ok()) << packed.describe();
  EXPECT_THAT(packed.err, HasSubstr("as it was damaged"));
  EXPECT_TRUE(averages() == now);
}

TEST_F(DailyLoop, APackHasOnlyTheErrorRatesOfItsOwnWeights) {
  const std::string readme = std::string(kExp) + "model_pack/README.md";
  EXPECT_THAT(read(readme), HasSubstr("| test |"));
  const auto stages = [&](std::vector<std::string> names) {
    std::vector<std::string> words = {"run", "--stages"};
    words.insert(words.end(), names.begin(), names.end());
    for (const auto& [option, file] :
         {std::pair("--training_config", "training_asr_transformer"),
          std::pair("--inference_config", "inference"), std::pair("--metrics_config", "metrics")}) {
      words.emplace_back(option);
      words.push_back(conf(file + std::string(".yaml")));
    }
    const CommandResult result = run(words);
    EXPECT_TRUE(result.ok()) << result.describe();
    return result.err;
  };
  ASSERT_TRUE(stage("train", {"trainer.max_epochs=2"}).ok());
  const std::string late = stages({"measure", "pack_model"});
  EXPECT_THAT(late, HasSubstr("test: these results came from other weights"));
  EXPECT_THAT(late, HasSubstr("test: its error rates came from other weights"));
  EXPECT_THAT(read(readme), Not(HasSubstr("| test |")));
  // New results whose error rates nobody has counted yet are nothing new for the pack.
  EXPECT_THAT(stages({"infer", "pack_model"}), HasSubstr("pack_model: up to date, skipped"));
  EXPECT_THAT(read(readme), Not(HasSubstr("| test |")));
  EXPECT_THAT(stages({"measure", "pack_model"}), Not(HasSubstr("other weights")));
  EXPECT_THAT(read(readme), HasSubstr("| test |"));
}

TEST_F(DailyLoop, WhatCouldNotBeDecodedIsToldWhereverItsErrorRatesAre) {
  const std::string audio =
      parse_json(split(read("data/test.jsonl"), '\n')[0], "test.jsonl")["audio"];
  write_file_atomic(path_ / "data" / audio, "this is no audio\n");
  const CommandResult decoded = infer({"--force", "inference:on_bad=skip"});
  EXPECT_EQ(decoded.exit_code, 7) << decoded.describe();
  EXPECT_THAT(decoded.err, HasSubstr("test: 1 utterance, "));
  const CommandResult scored =
      run({"run", "--stages", "measure", "pack_model", "--training_config",
           conf("training_asr_transformer.yaml"), "--inference_config", conf("inference.yaml"),
           "--metrics_config", conf("metrics.yaml")});
  ASSERT_TRUE(scored.ok()) << scored.describe();
  EXPECT_THAT(scored.err, HasSubstr("test: 1 of 2 utterances could not be decoded"));
  const Json metrics = parse_json(read(std::string(kInference) + "metrics.json"), "metrics.json");
  for (const auto& [metric, sets] : metrics.items()) {
    EXPECT_EQ(sets["test"]["utterances"], 1) << metric;
    EXPECT_EQ(sets["test"]["utterances_not_decoded"], 1) << metric;
    EXPECT_EQ(sets["valid"]["utterances_not_decoded"], 0) << metric;
  }
  for (const char* page : {"report.html", "inference/metrics.html"})
    EXPECT_THAT(read(std::string(kExp) + page), HasSubstr("<th>not decoded</th>")) << page;
  EXPECT_THAT(read(std::string(kExp) + "model_pack/README.md"),
              HasSubstr("test: 1 of 2 utterances could not be decoded and are not counted."));
}

TEST_F(DailyLoop, AnotherSearchSaysWhatChanged) {
  const CommandResult wider = infer({"model.beam_size=3"});
  ASSERT_TRUE(wider.ok()) << wider.describe();
  EXPECT_THAT(wider.err, HasSubstr("model.beam_size: was 1, is 3"));
  // Where and by how many is no change.
  const CommandResult elsewhere =
      infer({"model.beam_size=3", "parallel.n_workers=2", "+device=cpu", "+batch_size=2"});
  ASSERT_TRUE(elsewhere.ok()) << elsewhere.describe();
  EXPECT_THAT(elsewhere.err, HasSubstr("test: up to date, skipped"));
}

TEST_F(DailyLoop, AKilledDecodingGoesOnWithOtherWorkersAndOtherOverlays) {
  make_many(150);
  const TempFolder scratch;
  ::setenv("TMPDIR", scratch.path().c_str(), 1);
  kill_when([&] { return has("D/many/manifest.json"); });  // before the first result
  kill_when([&] { return num_journaled() > 2000; });
  const CommandResult more = run_command(
      {.argv = many_command({"parallel.n_workers=2"}), .timeout = std::chrono::minutes(3)});
  ASSERT_TRUE(more.ok()) << more.describe();
  expect_whole(150);
  // The real-time factor is of what this run has decoded.
  std::smatch said;
  ASSERT_TRUE(std::regex_search(more.err, said,
                                std::regex("many: (\\d+) utterances, .* of audio in .*real-time "
                                           "factor .*; (\\d+) were there before")))
      << more.err;
  EXPECT_GT(std::stoi(said[1]), 0);
  EXPECT_GT(std::stoi(said[2]), 0);
  EXPECT_EQ(std::stoi(said[1]) + std::stoi(said[2]), 150);

  EXPECT_TRUE(fs::is_empty(scratch.path())) << "a killed driver left something in $TMPDIR";
  ::unsetenv("TMPDIR");

  fs::remove_all(path_ / "D");
  kill_when([&] { return num_journaled() > 2000; });
  std::vector<std::string> overlay = many_command();
  overlay.insert(overlay.begin() + 6, conf("parallel_local.yaml"));
  const CommandResult other = run_command({.argv = overlay, .timeout = std::chrono::minutes(3)});
  ASSERT_TRUE(other.ok()) << other.describe();
  expect_whole(150);
}

// Padding costs least so. Whenever the run is killed, nothing that is done is shorter than what is not.
TEST_F(DailyLoop, BatchesAreOfLikeLengthLongestFirst) {
  make_many(60);
  std::string lines;
  for (const auto& line : split(trim(read("data/many.jsonl")), '\n')) {
    Json entry = parse_json(line, "many.jsonl");
    const int number = std::stoi(entry["id"].get<std::string>().substr(1));
    entry.erase("num_samples");
    entry["begin"] = 0.0;
    entry["end"] = 0.3 + 0.01 * (number * 37 % 60);  // in no order
    lines += to_json_line(entry) + "\n";
  }
  write("data/many.jsonl", lines);
  const auto command = many_command({"+batch_size=4", "parallel.n_workers=1"});
  kill_when([&] { return num_journaled() > 2000; }, command);
  const CommandResult partial =
      run_command({.argv = {in_bin("tutti"), "gather", (path_ / "D/many").string()}});
  std::map<std::string, bool> done;
  for (const auto& line : split(trim(read("D/many/results.jsonl")), '\n')) {
    const Json result = parse_json(line, "results.jsonl");
    done[result["item"]] = result["status"] == "ok";
  }
  double shortest_done = 9, longest_left = 0;
  for (const auto& line : split(trim(lines), '\n')) {
    const Json entry = parse_json(line, "many.jsonl");
    const double seconds = entry["end"];
    if (done[entry["id"]])
      shortest_done = std::min(shortest_done, seconds);
    else
      longest_left = std::max(longest_left, seconds);
  }
  EXPECT_LT(shortest_done, 9) << partial.describe();
  EXPECT_GT(shortest_done, longest_left);
  const CommandResult rest = run_command({.argv = command, .timeout = std::chrono::minutes(3)});
  ASSERT_TRUE(rest.ok()) << rest.describe();
  expect_whole(60);
}

TEST_F(DailyLoop, ASecondExperimentSharesTheStatistics) {
  std::string text = read("conf/training_asr_transformer.yaml");
  const auto at = text.find("output_size: 2");
  text.replace(at, std::strlen("output_size: 2"), "output_size: 4");
  write("conf/second.yaml", text);
  const CommandResult second =
      run({"run", "--stages", "collect_stats", "train", "--training_config", conf("second.yaml")});
  ASSERT_TRUE(second.ok()) << second.describe();
  EXPECT_THAT(second.err, HasSubstr("collect_stats: up to date, skipped"));
  const CommandResult decoded = run({"infer", "--training_config", conf("second.yaml"),
                                     "--inference_config", conf("inference.yaml")});
  ASSERT_TRUE(decoded.ok()) << decoded.describe();
  EXPECT_EQ(num_lines("exp/second/inference/test/hyp.scp"), 2U);

  const CommandResult other = run({"collect_stats", "--training_config", conf("second.yaml"),
                                   "model.frontend_conf.hop_length=200"});
  ASSERT_TRUE(other.ok()) << other.describe();
  EXPECT_THAT(other.err, HasSubstr("frontend_conf.hop_length: was 160, is 200"));
  // The first experiment is told that these are no longer its statistics.
  const CommandResult first = stage("train", {"exp_tag=third"});
  ASSERT_TRUE(first.ok()) << first.describe();
  EXPECT_THAT(first.err, HasSubstr("frontend_conf.hop_length: was 200, is 160"));
  // Where the model is normalised by them, they are refused, and nothing is begun.
  const CommandResult refused =
      stage("train", {"exp_tag=fourth", "model.normalize=global_mvn",
                      "model.normalize_conf={stats_file: \"${stats_dir}/train/feats_stats.npz\"}"});
  EXPECT_EQ(refused.exit_code, 2) << refused.describe();
  EXPECT_THAT(refused.err, HasSubstr("are of other features"));
  EXPECT_THAT(refused.err, HasSubstr("run the collect_stats stage first"));
  EXPECT_FALSE(has("exp/fourth"));
}

TEST_F(DailyLoop, TheConfigOfATrainingIsFoundFromItsWeights) {
  const std::string before = read(std::string(kInference) + "test/hyp.scp");
  const CommandResult found =
      infer({"~model.asr_train_config", "inference_dir=" + (path_ / "F").string(),
             "model.asr_model_file=" +
                 (path_ / kExp / "checkpoints/valid.loss.ave_1best.safetensors").string()});
  ASSERT_TRUE(found.ok()) << found.describe();
  EXPECT_EQ(read("F/test/hyp.scp"), before);
}

TEST_F(DailyLoop, WeightsAreTheAverageOfAsManyAsWereKeptAndNothingLikeIt) {
  EXPECT_THAT(infer().err, HasSubstr("valid.loss.ave_10best.pth is not there; the average of as "
                                     "many as were kept is: "));
  for (const char* name : {"ave_5bezt", "ave_xyz", "ave_0best", "ave_"}) {
    const CommandResult misspelt =
        infer({std::string("model.asr_model_file=${exp_dir}/valid.loss.") + name + ".pth"});
    EXPECT_EQ(misspelt.exit_code, 3) << misspelt.describe();
    EXPECT_THAT(misspelt.err, HasSubstr("there are "));
    EXPECT_THAT(misspelt.err, HasSubstr("valid.loss.ave_1best.safetensors"));
  }
}

TEST_F(DailyLoop, TheTopLevelDeviceReachesTheModel) {
  const CommandResult nowhere = infer({"device=cuda:99", "--force"});
  EXPECT_FALSE(nowhere.ok());
  EXPECT_THAT(nowhere.err, HasSubstr("cuda:99"));
}

TEST_F(DailyLoop, ForceDecodesAgain) {
  const std::string before = read(std::string(kInference) + "test/results.jsonl");
  std::vector<std::string> files;
  for (const auto& line : split(trim(read("data/test.jsonl")), '\n'))
    files.push_back(parse_json(line, "test.jsonl")["audio"]);
  ASSERT_EQ(files.size(), 2U);
  const auto place = [&](const std::string& file) {
    return fs::path(file).is_absolute() ? fs::path(file) : path_ / "data" / file;
  };
  fs::copy_file(place(files[0]), place(files[1]), fs::copy_options::overwrite_existing);
  ASSERT_TRUE(infer({"--force"}).ok());
  EXPECT_NE(read(std::string(kInference) + "test/results.jsonl"), before);
  EXPECT_EQ(read(std::string(kInference) + "test.old/results.jsonl"), before);
  const CommandResult stats = stage("collect_stats", {"--force"});
  ASSERT_TRUE(stats.ok()) << stats.describe();
  EXPECT_THAT(stats.err, Not(HasSubstr("nothing left to do")));
}

TEST_F(DailyLoop, AModelThatCannotBeLoadedLeavesTheOldResultsInPlace) {
  const std::string results = std::string(kInference) + "test/results.jsonl";
  const std::string before = read(results);
  write("broken.safetensors", "these are no weights");
  for (const char* async : {"false", "true"}) {
    const CommandResult failed =
        infer({"model.asr_model_file=" + (path_ / "broken.safetensors").string(),
               std::string("parallel.async=") + async});
    EXPECT_FALSE(failed.ok()) << async;
    EXPECT_EQ(read(results), before) << async;
    EXPECT_FALSE(has(std::string(kInference) + "test.old")) << async;
  }
  const CommandResult again = infer();
  ASSERT_TRUE(again.ok()) << again.describe();
  EXPECT_THAT(again.err, HasSubstr("test: up to date, skipped"));
}

TEST_F(DailyLoop, ScoringAndPackingAreSkippedUntilSomethingChanges) {
  const std::vector<std::string> command = {"run",
                                            "--stages",
                                            "measure",
                                            "pack_model",
                                            "--training_config",
                                            conf("training_asr_transformer.yaml"),
                                            "--inference_config",
                                            conf("inference.yaml"),
                                            "--metrics_config",
                                            conf("metrics.yaml")};
  const CommandResult again = run(command);
  ASSERT_TRUE(again.ok()) << again.describe();
  EXPECT_THAT(again.err, HasSubstr("measure: up to date, skipped"));
  EXPECT_THAT(again.err, HasSubstr("pack_model: up to date, skipped"));

  fs::remove_all(path_ / kExp / "model_pack");
  write(std::string(kInference) + "test/hyp.scp", read(std::string(kInference) + "test/ref.scp"));
  const CommandResult changed = run(command);
  ASSERT_TRUE(changed.ok()) << changed.describe();
  EXPECT_THAT(changed.err, HasSubstr("test.hyp"));
  EXPECT_TRUE(has(std::string(kExp) + "model_pack/config.yaml"));
}

TEST_F(DailyLoop, APackHasTheWeightsThatWereDecodedAndNamesNoPlaces) {
  const std::string checkpoints = std::string(kExp) + "checkpoints/";
  // Averages of others beside the one that the inference config means.
  write(checkpoints + "valid.loss.ave_0best.safetensors", "other");
  fs::remove_all(path_ / kExp / "model_pack");
  const CommandResult packed =
      run({"pack_model", "--training_config", conf("training_asr_transformer.yaml"),
           "--inference_config", conf("inference.yaml")});
  ASSERT_TRUE(packed.ok()) << packed.describe();
  EXPECT_EQ(read(std::string(kExp) + "model_pack/model.safetensors"),
            read(checkpoints + "valid.loss.ave_1best.safetensors"));
  for (const auto& line : split(read(std::string(kExp) + "model_pack/config.yaml"), '\n'))
    EXPECT_THAT(line, Not(testing::ContainsRegex("(: |- |\\[|\")/[a-z]")));
  const std::string audio =
      parse_json(split(read("data/test.jsonl"), '\n')[0], "test.jsonl")["audio"];
  const CommandResult said = run({"infer", "--model", (path_ / kExp / "model_pack").string(),
                                  (path_ / "data" / audio).string()});
  EXPECT_TRUE(said.ok()) << said.describe();
}

TEST_F(DailyLoop, WeightsThatWereKeptElsewhereAreDecodedMeasuredAndPacked) {
  const fs::path away = folder_.path() / "away";
  const CommandResult result =
      run({"run", "--stages", "train", "infer", "measure", "pack_model", "--training_config",
           conf("training_asr_transformer.yaml"), "--inference_config", conf("inference.yaml"),
           "--metrics_config", conf("metrics.yaml"), "exp_tag=away",
           "training:trainer.default_root_dir=" + away.string()});
  ASSERT_TRUE(result.ok()) << result.describe();
  EXPECT_EQ(num_lines("exp/away/inference/test/hyp.scp"), 2U);
  EXPECT_TRUE(has("exp/away/inference/metrics.json"));
  EXPECT_EQ(read("exp/away/model_pack/model.safetensors"),
            read_file(away / "checkpoints/valid.loss.ave_1best.safetensors"));
}

TEST_F(DailyLoop, ACopyWithoutLinksTrainsOn) {
  const fs::path copy = path_.parent_path() / "followed";
  ASSERT_TRUE(run_command({.argv = {"cp", "-rL", path_.string(), copy.string()}}).ok());
  path_ = copy;
  const fs::path last = path_ / kExp / "checkpoints/last";
  ASSERT_FALSE(fs::is_symlink(last));
  const CommandResult more = stage("train", {"trainer.max_epochs=2"});
  ASSERT_TRUE(more.ok()) << more.describe();
  EXPECT_TRUE(fs::is_symlink(last));
  EXPECT_TRUE(fs::exists(last / "model.safetensors"));
}

TEST_F(DailyLoop, NothingDecodesWithTheAverageOfACriterionThatWasDropped) {
  const std::string exp = kExp, average = "valid.loss.ave_1best.safetensors";
  const std::string before = read(exp + "checkpoints/" + average);
  const CommandResult more =
      stage("train", {"trainer.max_epochs=2", "best_model_criterion=[[valid/acc, 2, max]]"});
  ASSERT_TRUE(more.ok()) << more.describe();
  EXPECT_THAT(more.err + more.out, HasSubstr("valid/loss is no criterion any more"));
  for (const auto& entry : fs::directory_iterator(path_ / kExp / "checkpoints"))
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("valid.loss")));
  EXPECT_THAT(read(exp + "checkpoints/best.json"),
              testing::AllOf(HasSubstr("valid/acc"), Not(HasSubstr("valid/loss"))));
  EXPECT_EQ(read(exp + "checkpoints.before/" + average), before);

  const CommandResult decoded = infer();  // its config names the average of the loss
  EXPECT_FALSE(decoded.ok()) << decoded.err;
  EXPECT_THAT(decoded.err, testing::AllOf(HasSubstr("valid.loss.ave_10best.pth: no such file"),
                                          HasSubstr("valid.acc.ave_2best.safetensors")));
}

class DatasetReader : public BuiltRecipe {
 protected:
  // The recipe's training file with other entries.
  std::string training_with(const std::string& train, const std::string& valid) const {
    std::string text = read("conf/training_asr_transformer.yaml");
    for (const auto& [key, entry] : {std::pair{std::string("train"), train}, {"valid", valid}}) {
      const auto at = text.find("- ", text.find("  " + key + ":\n"));
      text.replace(at, text.find('\n', at) - at, "- " + entry);
    }
    write("conf/other.yaml", text);
    return conf("other.yaml");
  }
};

TEST_F(DatasetReader, AnArchiveIsTrainedOnAndDecoded) {
  for (const char* split : {"train", "valid", "test"}) {
    std::vector<std::string> words = {"pack", "--manifest",
                                      (path_ / "data" / (std::string(split) + ".jsonl")).string(),
                                      "--output", (path_ / (std::string(split) + ".tta")).string()};
    const CommandResult packed = run(words);
    ASSERT_TRUE(packed.ok()) << packed.describe();
    const CommandResult again = run(words);
    EXPECT_EQ(again.exit_code, 2) << again.describe();
    EXPECT_THAT(again.err, HasSubstr("replace it with --force"));
    words.push_back("--force");
    EXPECT_TRUE(run(words).ok());
  }
  const std::string training =
      training_with("{data_src: archive, data_src_args: {archive: \"${recipe_dir}/train.tta\"}}",
                    "{data_src_args: {archive: \"${recipe_dir}/valid.tta\"}}");
  const CommandResult trained = run({"run", "--stages", "validate_dataset", "train_tokenizer",
                                     "collect_stats", "train", "--training_config", training});
  ASSERT_TRUE(trained.ok()) << trained.describe();
  // The same utterances, weights and words as from the files.
  EXPECT_EQ(read("exp/other/checkpoints/valid.loss.ave_1best.safetensors"),
            read(std::string(kExp) + "checkpoints/valid.loss.ave_1best.safetensors"));
  std::string inference = read("conf/inference.yaml");
  const auto begin = inference.find("dataset:"), end = inference.find("\nmodel:");
  inference.replace(begin, end - begin,
                    "dataset:\n  test:\n    - {name: test, data_src_args: {archive: "
                    "\"${recipe_dir}/test.tta\"}}\n");
  write("conf/inference_archive.yaml", inference);
  const CommandResult decoded = run({"infer", "--training_config", training, "--inference_config",
                                     conf("inference_archive.yaml")});
  ASSERT_TRUE(decoded.ok()) << decoded.describe();
  EXPECT_EQ(read("exp/other/inference_archive/test/hyp.scp"),
            read(std::string(kInference) + "test/hyp.scp"));
}

TEST_F(DatasetReader, KeysOfAnEntryHaveTheirEffectInEveryStage) {
  // As a telephone carries it: the lengths stay, the features change.
  const std::string before = read("exp/stats/train/feats_stats.npz");
  const std::string shapes = read("exp/stats/train/feats_shape");
  const std::string training =
      training_with("{data_src: mini_an4/asr, data_src_args: {split: train, sample_rate: 8000}}",
                    "{data_src: mini_an4/asr, data_src_args: {split: valid}}");
  const CommandResult narrow = run({"collect_stats", "--training_config", training});
  ASSERT_TRUE(narrow.ok()) << narrow.describe();
  EXPECT_NE(read("exp/stats/train/feats_stats.npz"), before);
  EXPECT_EQ(read("exp/stats/train/feats_shape"), shapes);

  const std::string odd = training_with(
      "{data_src: mini_an4/asr, data_src_args: {split: train}, transform: {_target_: nobody}}",
      "{data_src: mini_an4/asr, data_src_args: {split: valid, channel: third}}");
  const CommandResult refused = run({"collect_stats", "--training_config", odd});
  EXPECT_EQ(refused.exit_code, 2) << refused.describe();
  EXPECT_THAT(refused.err, HasSubstr("nobody"));
}

TEST_F(DatasetReader, ARenamedRecipeKeepsItsBuilderAndAnUnnamedOneIsToldWhy) {
  const fs::path renamed = path_.parent_path() / "my_recipe";
  fs::rename(path_, renamed);
  path_ = renamed;
  const CommandResult again = stage("collect_stats", {"--force"});
  ASSERT_TRUE(again.ok()) << again.describe();
  const std::string training =
      training_with("{data_src_args: {split: train}}", "{data_src_args: {split: valid}}");
  const CommandResult built = run({"collect_stats", "--training_config", training});
  EXPECT_TRUE(built.ok()) << "what was built is there: " << built.describe();
  fs::remove(path_ / "data/train.jsonl");
  const CommandResult lost = run({"collect_stats", "--training_config", training});
  EXPECT_EQ(lost.exit_code, 2);
  EXPECT_THAT(lost.err, HasSubstr("is named like a builder"));
}

TEST_F(DatasetReader, FeaturesMadeElsewhereAreTrainedOnAndDecoded) {
  const data::Fbank fbank({.win_length = 400, .hop_length = 160});
  for (const char* split : {"train", "valid", "test"}) {
    const auto manifest =
        data::read_jsonl_manifest(path_ / "data" / (split + std::string(".jsonl")));
    std::string scp, text;
    for (std::size_t i = 0; i < manifest.size(); ++i) {
      const std::string uid(manifest.uid(i));
      const auto audio =
          data::read_audio(std::string(manifest.entry(i).audio), {.sample_rate = 16000});
      const fs::path file = path_ / "feats" / (uid + ".npy");
      fs::create_directories(file.parent_path());
      data::write_npy(file, fbank.compute(audio.samples));
      scp += uid + " " + file.string() + "\n";
      text += uid + " " + std::string(manifest.text(i)) + "\n";
    }
    write(std::string("feats/") + split + ".scp", scp);
    write(std::string("feats/") + split + ".text", text);
  }
  const auto entry = [](const std::string& split) {
    return "{name: " + split + ", data_src_args: {feats_scp: \"${recipe_dir}/feats/" + split +
           ".scp\", text: \"${recipe_dir}/feats/" + split + ".text\"}}";
  };
  const std::string training = training_with(entry("train"), entry("valid"));
  std::string config = read("conf/other.yaml");
  const auto begin = config.find("    data_aug_effects:"), end = config.find("    token_type:");
  config.erase(begin, end - begin);
  const auto frontend = config.find("  frontend: default");
  config.replace(frontend, config.find("  normalize:") - frontend, "  input_size: 80\n");
  write("conf/other.yaml", config);
  const std::string statistics = read("exp/stats/train/feats_stats.npz");
  const CommandResult trained = run({"run", "--stages", "validate_dataset", "collect_stats",
                                     "train", "--training_config", training});
  ASSERT_TRUE(trained.ok()) << trained.describe();
  EXPECT_EQ(read("exp/stats/train/feats_stats.npz"), statistics);
  std::string inference = read("conf/inference.yaml");
  const auto from = inference.find("dataset:"), to = inference.find("\nmodel:");
  inference.replace(from, to - from, "dataset:\n  test:\n    - " + entry("test") + "\n");
  write("conf/inference_feats.yaml", inference);
  const CommandResult decoded = run(
      {"infer", "--training_config", training, "--inference_config", conf("inference_feats.yaml")});
  ASSERT_TRUE(decoded.ok()) << decoded.describe();
  EXPECT_EQ(num_lines("exp/other/inference_feats/test/hyp.scp"), 2U);
}

}  // namespace
}  // namespace tutti::systems
