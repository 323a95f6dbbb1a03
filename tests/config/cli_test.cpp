// What every command of the front door does: version, help, arguments that nobody knows, advice.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"

namespace tutti {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
namespace fs = std::filesystem;

CommandResult run_tutti(std::vector<std::string> arguments,
                        std::map<std::string, std::string> env = {}) {
  arguments.insert(arguments.begin(), in_bin("tutti"));
  return run_command(
      {.argv = arguments, .env = std::move(env), .timeout = std::chrono::seconds(60)});
}

// Those of `tutti --help` that this build has: without torch the stages' program is not there.
std::vector<std::string> commands() {
  std::vector<std::string> names;
  for (const auto& line : split(run_tutti({"--help"}).out, '\n'))
    if (line.starts_with("  ") && line.size() > 2 && line[2] != ' ')
      names.push_back(split_words(line)[0]);
  EXPECT_GT(names.size(), 15U);
  if (!fs::exists(in_bin("tutti-run")))
    std::erase_if(names, [](const std::string& name) {
      static const std::vector<std::string> kFront = {"config",   "doctor", "launch", "pack",
                                                      "parallel", "map",    "status", "wait",
                                                      "gather",   "cancel", "worker"};
      return std::find(kFront.begin(), kFront.end(), name) == kFront.end();
    });
  return names;
}

TEST(CommandLine, SaysWhatItIs) {
  const CommandResult result = run_tutti({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out,
              ::testing::MatchesRegex("tutti [0-9]+\\.[0-9]+\\.[0-9]+ \\([a-z0-9-]+\\), torch "
                                      "([0-9.]+|none), CUDA ([0-9.]+|none)\n"));
}

TEST(CommandLine, EveryHelpExitsZeroAndShowsAnExample) {
  std::vector<std::vector<std::string>> all;
  for (const auto& name : commands()) all.push_back({name});
  for (const char* sub : {"check", "show", "reference"}) all.push_back({"config", sub});
  all.push_back({"parallel", "script"});
  for (auto words : all) {
    const std::string name = join(words, " ");
    words.emplace_back("--help");
    const CommandResult result = run_tutti(words);
    EXPECT_EQ(result.exit_code, 0) << name << "\n" << result.err;
    EXPECT_THAT(result.out, HasSubstr("example:\n  tutti ")) << name;
  }
}

TEST(CommandLine, HelpOfACommandIsItsHelp) {
  EXPECT_EQ(run_tutti({"help", "map"}).out, run_tutti({"map", "--help"}).out);
  const CommandResult check = run_tutti({"help", "config", "check"});
  EXPECT_EQ(check.out, run_tutti({"config", "check", "--help"}).out);
  EXPECT_THAT(check.out, HasSubstr("example:\n  tutti config check "));
  EXPECT_THAT(check.out, Not(HasSubstr("config show")));
  EXPECT_THAT(run_tutti({"config", "show", "--help"}).out,
              HasSubstr("example:\n  tutti config show "));
  EXPECT_EQ(run_tutti({"help", "mapp"}).exit_code, 2);
  if (fs::exists(in_bin("tutti-run"))) {  // not without torch
    EXPECT_THAT(run_tutti({"help", "infer"}).out, HasSubstr("\n  tutti infer --model "));
  }
}

TEST(CommandLine, AnUnknownArgumentIsAConfigErrorWithAdvice) {
  for (const auto& name : commands()) {
    const CommandResult result = run_tutti({name, "--no-such-option"});
    EXPECT_EQ(result.exit_code, 2) << name << "\n" << result.err;
    EXPECT_THAT(result.err, HasSubstr("fix: ")) << name;
  }
  EXPECT_THAT(run_tutti({"map", "--item", "3"}).err, HasSubstr("did you mean '--items'?"));
  EXPECT_THAT(run_tutti({"config", "chek", "x.yaml"}).err, HasSubstr("did you mean 'check'?"));
  EXPECT_THAT(run_tutti({"doktor"}).err, HasSubstr("did you mean 'doctor'?"));
  EXPECT_THAT(run_tutti({"decode"}).err, HasSubstr("did you mean 'infer'?"));
  EXPECT_THAT(run_tutti({"map", "--trainer.max_epochs=3"}).err,
              HasSubstr("an override has no dashes: trainer.max_epochs=VALUE"));
}

std::string check_file(const std::string& name, const std::string& text) {
  const TempFolder folder;
  write_file_atomic(folder.path() / name, text);
  const CommandResult result = run_tutti({"config", "check", (folder.path() / name).string()});
  EXPECT_EQ(result.exit_code, 2) << text;
  return result.err;
}

TEST(CommandLine, NamesOfOtherToolkitsLeadToOurs) {
  const std::string slurm =
      check_file("parallel_a.yaml",
                 "parallel: {env: slurm, n_workers: 2, options: {partition: gpu, gres: 'gpu:4', "
                 "time: 1h, qos: high, cores: 2, memory: 8GB}}\n");
  EXPECT_THAT(slurm, HasSubstr("parallel.options.partition: is called queue here"));
  EXPECT_THAT(
      slurm,
      HasSubstr("parallel.options.gres: is written under job_extra_directives: ['--gres=gpu:4']"));
  EXPECT_THAT(slurm, HasSubstr("is written under job_extra_directives: ['--qos=high']"));
  EXPECT_THAT(slurm, HasSubstr("parallel.options.time: is called walltime here"));
  EXPECT_THAT(slurm, Not(HasSubstr("known keys here")));
  const std::string sge =
      check_file("parallel_c.yaml",
                 "parallel: {env: sge, n_workers: 2, options: {pe: smp, q: all.q, "
                 "h_vmem: 4G, h_rt: 1h, cores: 2, memory: 8GB}}\n");
  EXPECT_THAT(sge, HasSubstr("parallel.options.pe: is called parallel_environment here"));
  EXPECT_THAT(sge, HasSubstr("parallel.options.q: is called queue here"));
  EXPECT_THAT(sge, HasSubstr("parallel.options.h_vmem: is called memory here"));
  EXPECT_THAT(sge, Not(HasSubstr("known keys here")));
  EXPECT_THAT(check_file("parallel_b.yaml", "parallel: {env: slurm, nj: 32}\n"),
              HasSubstr("is called n_workers here"));
  const std::string training = check_file("train.yaml", "max_epoch: 3\naccum_grad: 2\nngpu: 1\n");
  EXPECT_THAT(training, HasSubstr("max_epoch: is called trainer.max_epochs here"));
  EXPECT_THAT(training, HasSubstr("accum_grad: is called trainer.accumulate_grad_batches here"));
  EXPECT_THAT(training, HasSubstr("ngpu: is called num_device here"));
}

TEST(CommandLine, ASizeWithoutUnitIsQuestioned) {
  EXPECT_THAT(check_file("parallel_a.yaml",
                         "parallel: {env: slurm, n_workers: 2, options: {cores: 2, memory: 32}}\n"),
              HasSubstr("parallel.options.memory: got '32', expected a size with its unit: 32GB"));
  const auto with_memory = [](const std::string& memory) {
    return check_file(
        "parallel_a.yaml",
        "parallel: {env: slurm, n_workers: 2, options: {cores: 2, memory: " + memory + "}}\n");
  };
  // What sbatch takes as megabytes.
  EXPECT_THAT(with_memory("28000"), HasSubstr("expected a size with its unit: 28000MB"));
  EXPECT_THAT(with_memory("-3GB"), HasSubstr("got '-3GB', expected a size such as 32GB or 6.5GiB"));
}

TEST(CommandLine, DirectivesOfAScriptAreNamedWithoutTheirMark) {
  EXPECT_THAT(check_file("parallel_a.yaml",
                         "parallel: {env: slurm, n_workers: 2, options: {cores: 2, memory: 8GB, "
                         "job_extra_directives: ['#SBATCH --gres=gpu:2']}}\n"),
              HasSubstr("fix: leave out '#SBATCH': write '--gres=gpu:2'"));
}

TEST(CommandLine, WorkersThatShareAGpuArePointedOut) {
  const auto warnings = [](const std::string& options) {
    const TempFolder folder;
    const fs::path file = folder.path() / "parallel_a.yaml";
    write_file_atomic(
        file, "parallel: {env: slurm, n_workers: 4, options: {cores: 4, memory: 8GB, " + options +
                  "}}\n");
    const CommandResult result = run_tutti({"config", "check", file.string()});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.err;
  };
  EXPECT_THAT(
      warnings("job_extra_directives: ['--gres=gpu:a100:1']"),
      HasSubstr("4 workers of a job share 1 GPU\n  fix: set processes: 1, or ask for 4 GPUs"));
  EXPECT_THAT(warnings("processes: 1, job_extra_directives: ['--gres=gpu:1']"),
              Not(HasSubstr("share")));
  EXPECT_THAT(warnings("job_extra_directives: ['--gres=gpu:2,lscratch:1,gpu:a100:2']"),
              Not(HasSubstr("share")));
}

TEST(CommandLine, ATabIsNamed) {
  EXPECT_THAT(check_file("train.yaml", "trainer:\n\tdevices: 1\n"),
              HasSubstr("train.yaml:2:1: a tab in the indentation"));
}

TEST(CommandLine, ABlankAfterTheColonIsMissed) {
  // The last of the keys, a value of its own, a key of a flow map, and a line among keys.
  EXPECT_THAT(
      check_file("train.yaml", "optimizer:\n  _target_: adam\n  lr:0.005\n"),
      HasSubstr("train.yaml:3:3: optimizer.lr:0.005: a key without a blank after its colon\n"
                "  fix: write lr: 0.005"));
  EXPECT_THAT(check_file("train.yaml", "optimizer:\n  lr:0.005\n"),
              HasSubstr("train.yaml:2:3: optimizer: got 'lr:0.005'"));
  EXPECT_THAT(check_file("train.yaml", "optimizer: {_target_: adam, lr:0.005}\n"),
              HasSubstr("fix: write lr: 0.005"));
  EXPECT_THAT(check_file("train.yaml", "optimizer:\n  lr:0.005\n  _target_: adam\n"),
              HasSubstr("lr: 0.005"));
}

TEST(CommandLine, ADoubtfulWalltimeIsQuestioned) {
  const TempFolder folder;
  const auto warnings = [&](const std::string& env, const std::string& walltime) {
    const fs::path file = folder.path() / "parallel_a.yaml";
    write_file_atomic(file, "parallel: {env: " + env +
                                ", n_workers: 2, options: {cores: 2, memory: 8GB, walltime: '" +
                                walltime + "'}}\n");
    const CommandResult result = run_tutti({"config", "check", file.string()});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.err;
  };
  EXPECT_THAT(warnings("slurm", "30"), HasSubstr("walltime: '30' means 30m00s to slurm"));
  EXPECT_THAT(warnings("pbs", "30"), HasSubstr("'30' means 30.0 s to pbs"));
  EXPECT_THAT(warnings("slurm", "08:00"), HasSubstr("'08:00' means 8m00s to slurm"));
  EXPECT_EQ(warnings("lsf", "08:00"), "");
  EXPECT_EQ(warnings("slurm", "08:00:00"), "");
}

TEST(CommandLine, FilesOfSeveralKindsAreCheckedEachForItself) {
  const TempFolder folder;
  const fs::path training = folder.path() / "training.yaml";
  const fs::path inference = folder.path() / "inference.yaml";
  const fs::path overlay = folder.path() / "parallel_two.yaml";
  write_file_atomic(training, "task: asr\nmodel: {encoder: conformer, decoder: transformer}\n");
  write_file_atomic(inference,
                    "model: {_target_: asr, asr_model_file: '${exp_dir}/valid.acc.ave.pth'}\n"
                    "dataset: {test: [{name: a, data_src_args: {split: test}}]}\n");
  write_file_atomic(overlay, "parallel: {env: local, n_workers: 2}\n");
  const auto check = [&](std::vector<std::string> words) {
    words.insert(words.begin(),
                 {"config", "check", inference.string(), overlay.string(), training.string()});
    return run_tutti(words);
  };
  const CommandResult fine = check({"seed=3", "model.beam_size=4"});
  EXPECT_EQ(fine.exit_code, 0) << fine.err;
  EXPECT_THAT(fine.out, HasSubstr("training.yaml: ok (training config)"));
  EXPECT_THAT(fine.out, HasSubstr("inference.yaml: ok (inference config)"));
  EXPECT_THAT(fine.out, HasSubstr("parallel_two.yaml: ok (parallel config)"));
  const CommandResult slip = check({"beam_size=5"});
  EXPECT_EQ(slip.exit_code, 2);
  EXPECT_THAT(slip.err, HasSubstr("did you mean 'model.beam_size=5'?"));
  write_file_atomic(inference, "model: {_target_: torchscrit, path: a.pt}\n");
  const CommandResult one = check({});
  EXPECT_EQ(one.exit_code, 2);
  EXPECT_THAT(one.err, HasSubstr("unknown inference model 'torchscrit'"));
  EXPECT_THAT(one.out, HasSubstr("training.yaml: ok"));
  EXPECT_THAT(one.out, Not(HasSubstr("inference.yaml: ok")));
  EXPECT_EQ(run_tutti({"config", "show", training.string(), inference.string()}).exit_code, 2);
}

TEST(CommandLine, TheCauseIsReportedWithoutWhatFollowsFromIt) {
  const std::string text =
      check_file("training.yaml",
                 "task: asr\nmodel: {encoder: conformer, decoder: transformer, encoder_conf: "
                 "{output_size: 6, attention_head: 2}}\n");
  EXPECT_THAT(text,
              HasSubstr("attention_head: unknown key\n  fix: did you mean 'attention_heads'?"));
  EXPECT_THAT(text, HasSubstr("1 problem\n"));
  EXPECT_THAT(check_file("training.yaml", "model: {_target_: torchscrit, path: a.pt}\n"),
              HasSubstr("unknown training model 'torchscrit'"));
}

TEST(CommandLine, FilesThatNobodyMakesMustBeThere) {
  const TempFolder folder;
  const fs::path file = folder.path() / "training.yaml";
  const std::string model =
      "task: asr\nmodel: {encoder: conformer, decoder: transformer, token_list: "
      "'${data_dir}/tok/tokens.txt'}\n";
  const std::string recipe = "recipe_dir: " + folder.path().string() + "\n";
  const auto check = [&](const std::string& text, std::vector<std::string> words = {}) {
    write_file_atomic(file, recipe + model + text);
    words.insert(words.begin(), {"config", "check", file.string()});
    return run_tutti(words);
  };
  const std::string manifests =
      "dataset:\n  train: [{name: a, data_src_args: {manifest: '${data_dir}/a.jsonl'}}]\n"
      "  valid: [{name: b, data_src_args: {manifest: '${data_dir}/a.jsonl'}}]\n"
      "  preprocessor: {token_type: char}\n";
  const std::string tokenizer = "tokenizer: {model_type: char, save_path: '${data_dir}/tok'}\n";
  const CommandResult missing = check(manifests);
  EXPECT_EQ(missing.exit_code, 2);
  EXPECT_THAT(missing.err, HasSubstr("dataset.train.0.data_src_args.manifest: got '"));
  EXPECT_THAT(missing.err, HasSubstr("a.jsonl', but there is no such file or folder"));
  EXPECT_THAT(missing.err, HasSubstr("model.token_list: got '"));
  EXPECT_EQ(check(manifests, {"--no_files"}).exit_code, 0);
  make_folders(folder.path() / "data");
  write_file_atomic(folder.path() / "data/a.jsonl", "");
  const CommandResult made = check(manifests + tokenizer);  // by train_tokenizer
  EXPECT_EQ(made.exit_code, 0) << made.err;
}

// A program of this name that says `text` and ends with `code`.
void put_program(const fs::path& folder, const std::string& name, const std::string& text,
                 int code) {
  write_file_atomic(folder / name, "#!/bin/sh\necho '" + text + "'" + (code == 0 ? "" : " >&2") +
                                       "\nexit " + std::to_string(code) + "\n");
  fs::permissions(folder / name, fs::perms::owner_all);
}

TEST(CommandLine, AnOutputFolderThatOthersMayWriteBecomesOurs) {
  const TempFolder folder;
  const fs::path output = folder.path() / "shared";
  fs::create_directory(output);
  fs::permissions(output, fs::perms::all);
  const CommandResult result =
      run_command({.argv = {in_bin("tutti"), "map", "--items", "1", "--output_dir", output.string(),
                            "--", "echo", "{}"}});
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  EXPECT_THAT(result.err, HasSubstr("only you may write in it from now on"));
  EXPECT_EQ(fs::status(output).permissions() & (fs::perms::group_write | fs::perms::others_write),
            fs::perms::none);
}

TEST(Doctor, ShowsTheQueuesOneMayName) {
  const TempFolder folder;
  put_program(folder.path(), "sbatch", "slurm 22.05.8", 0);
  put_program(folder.path(), "sinfo", "cpu*\ngpu\ngpu", 0);
  const auto result = run_tutti({"doctor"}, {{"PATH", folder.path().string()}});
  EXPECT_THAT(result.out, HasSubstr("slurm        ready; queues: cpu (default), gpu\n"));
}

TEST(Doctor, AsksEachSchedulerAndTellsTheTruth) {
  const TempFolder folder;
  put_program(folder.path(), "sbatch", "slurm 22.05.8", 0);
  put_program(folder.path(), "sinfo", "slurm_load_partitions: Unable to contact slurm controller",
              1);
  put_program(folder.path(), "bsub", "LSF 10", 0);
  put_program(folder.path(), "bqueues", "normal", 0);
  put_program(folder.path(), "qsub", "SGE 8", 0);
  const auto report =
      parse_json(run_tutti({"doctor", "--json"}, {{"PATH", folder.path().string()}}).out, "doctor");
  EXPECT_FALSE(report["envs"]["slurm"]["usable"].get<bool>());
  EXPECT_THAT(report["envs"]["slurm"]["needs"].get<std::string>(),
              HasSubstr("Slurm does not answer: slurm_load_partitions: Unable to contact"));
  EXPECT_TRUE(report["envs"]["lsf"]["usable"].get<bool>());
  EXPECT_THAT(report["envs"]["sge"]["needs"].get<std::string>(),
              HasSubstr("not Grid Engine's `qconf`"));
  EXPECT_EQ(report["envs"]["lsf"]["queues"], Json({"normal"}));
  EXPECT_FALSE(report["versions"]["tutti"].get<std::string>().empty());
  EXPECT_FALSE(report["versions"]["torch"].get<std::string>().empty());
}

}  // namespace
}  // namespace tutti
