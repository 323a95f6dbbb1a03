// What `config check` accepts is what the stages do: for keys and values that people try, both accept, or both refuse
// with the same words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "tests/places.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTraining = R"(task: asr
recipe_dir: RECIPE
exp_tag: base
stats_dir: ${recipe_dir}/exp/stats_${exp_tag}
dataset:
  train: [{name: train, data_src: jsonl, data_src_args: {manifest: "${recipe_dir}/data/train.jsonl"}}]
  valid: [{name: valid, data_src: jsonl, data_src_args: {manifest: "${recipe_dir}/data/train.jsonl"}}]
  preprocessor: {token_type: char}
tokenizer: {model_type: char, save_path: "${recipe_dir}/data/char"}
model:
  token_list: ${tokenizer.save_path}/tokens.txt
  frontend: default
  frontend_conf: {n_fft: 512, win_length: 400, hop_length: 160}
  encoder: transformer
  encoder_conf: {output_size: 4, attention_heads: 2, linear_units: 4, num_blocks: 2, input_layer: conv1d2}
  decoder: transformer
  decoder_conf: {attention_heads: 2, linear_units: 4, num_blocks: 1}
  model_conf: {ctc_weight: 0.3}
dataloader:
  train: {iter_factory: {batches: {type: unsorted, batch_size: 2}}}
trainer: {accelerator: cpu, max_epochs: 1, limit_train_batches: 1, num_sanity_val_steps: 0}
)";

constexpr const char* kInference = R"(recipe_dir: RECIPE
exp_tag: base
dataset:
  test: [{name: test, data_src: jsonl, data_src_args: {manifest: "${recipe_dir}/data/train.jsonl"}}]
model:
  _target_: espnet2.bin.asr_inference.Speech2Text
  asr_train_config: ${exp_dir}/config.yaml
  asr_model_file: ${exp_dir}/valid.loss.ave_1best.pth
  beam_size: 2
  device: cpu
)";

// A second of a tone, 16 kHz, 16 bit.
void write_wav(const fs::path& path, double hz) {
  const std::uint32_t rate = 16000, bytes = rate * 2;
  std::string data = "RIFF";
  const auto put = [&](std::uint32_t value, int size) {
    for (int i = 0; i < size; ++i) data += static_cast<char>((value >> (8 * i)) & 0xFFU);
  };
  put(36 + bytes, 4);
  data += "WAVEfmt ";
  put(16, 4), put(1, 2), put(1, 2), put(rate, 4), put(rate * 2, 4), put(2, 2), put(16, 2);
  data += "data";
  put(bytes, 4);
  for (std::uint32_t i = 0; i < rate; ++i)
    put(static_cast<std::uint32_t>(
            static_cast<std::int32_t>(8000 * std::sin(6.2832 * hz * i / rate))),
        2);
  write_file_atomic(path, data);
}

class Agreement : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TempFolder;
    const fs::path data = folder_->path() / "data";
    fs::create_directories(data);
    std::string manifest;
    for (int i = 0; i < 4; ++i) {
      write_wav(data / ("a" + std::to_string(i) + ".wav"), 200 + 60 * i);
      manifest += R"({"uid": "a)" + std::to_string(i) + R"(", "audio": "a)" + std::to_string(i) +
                  R"(.wav", "text": ")" + (i % 2 == 0 ? "HALLO DU" : "DU") + "\"}\n";
    }
    write_file_atomic(data / "train.jsonl", manifest);
    const std::pair<const char*, const char*> files[] = {{"training.yaml", kTraining},
                                                         {"inference.yaml", kInference}};
    for (const auto& [name, content] : files) {
      std::string text = content;
      text.replace(text.find("RECIPE"), 6, folder_->path().string());
      write_file_atomic(folder_->path() / name, text);
    }
    const CommandResult made = run({"train_tokenizer", training()});
    ASSERT_TRUE(made.ok()) << made.describe() << made.err;
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static std::string training() { return (folder_->path() / "training.yaml").string(); }
  static CommandResult run(std::vector<std::string> words) {
    words.insert(words.begin(), in_bin("tutti"));
    return run_command({.argv = words,
                        .env = {{"OMP_NUM_THREADS", "1"}},
                        .cwd = folder_->path(),
                        .timeout = std::chrono::minutes(3)});
  }

  // Into how many parts `word` cuts the text.
  static std::size_t split_on(const std::string& text, const std::string& word) {
    std::size_t parts = 1;
    for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++parts;
    return parts;
  }

  // The first complaint: "FILE:4:3: key: what".
  static std::string complaint(const std::string& text) {
    for (const auto& line : split(text, '\n'))
      if (!line.starts_with("warning") && line.find(": ") != std::string::npos) return line;
    return {};
  }

  struct Case {
    std::vector<std::string> check, stages;  // commands, with the overrides
    std::vector<std::string> overrides;
    bool is_fine = false;
    CommandResult checked, ran;
  };
  static Case make_case(std::vector<std::string> check, std::vector<std::string> stages,
                        const std::vector<std::string>& overrides, bool is_fine) {
    for (auto* words : {&check, &stages})
      words->insert(words->end(), overrides.begin(), overrides.end());
    return {check, stages, overrides, is_fine, {}, {}};
  }

  // Nearly all of a command's time is its start, so that as many run at once as there are cores.
  static void expect_agreement(std::vector<Case> cases) {
    std::atomic<std::size_t> next{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < std::max(2U, std::thread::hardware_concurrency()); ++t)
      threads.emplace_back([&] {
        for (std::size_t i = next++; i < cases.size(); i = next++) {
          cases[i].checked = run(cases[i].check);
          cases[i].ran = run(cases[i].stages);
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const Case& each : cases) {
      SCOPED_TRACE(join(each.overrides, " "));
      EXPECT_EQ(each.checked.exit_code, each.is_fine ? 0 : 2) << each.checked.err;
      EXPECT_EQ(each.ran.exit_code, each.checked.exit_code) << each.ran.err << each.ran.out;
      if (each.checked.exit_code == 2) {
        EXPECT_THAT(each.ran.err, testing::HasSubstr(complaint(each.checked.err)));
      }
    }
  }

  // With both stages: what is refused is refused before the first of them.
  static void expect_agreement(const std::vector<std::vector<std::string>>& all, bool is_fine) {
    static int number = 0;
    std::vector<Case> cases;
    std::vector<fs::path> statistics;
    for (const auto& overrides : all) {
      const std::string tag = "case" + std::to_string(++number);
      std::vector<std::string> words = {"exp_tag=" + tag};
      words.insert(words.end(), overrides.begin(), overrides.end());
      cases.push_back(
          make_case({"config", "check", training()},
                    {"run", "--stages", "collect_stats", "train", "--training_config", training()},
                    words, is_fine));
      statistics.push_back(folder_->path() / "exp" / ("stats_" + tag));
    }
    expect_agreement(std::move(cases));
    for (const fs::path& made : statistics) EXPECT_EQ(fs::exists(made), is_fine) << made;
  }

  static TempFolder* folder_;
};
TempFolder* Agreement::folder_ = nullptr;

TEST_F(Agreement, OnWhatIsRefusedOfTheModel) {
  const std::vector<std::vector<std::string>> cases = {
      {"task=espnet2.tasks.asr_transducer.ASRTransducerTask"},
      {"model.encoder=contextual_block_transformer"},
      {"model.encoder=branchformer"},
      {"model.encoder=conformr"},
      {"model.decoder=rnn"},
      {"model.frontend=s3prl"},
      {"++model.frontend_conf.htk=true"},
      {"++model.frontend_conf.window=hamming"},
      {"++model.frontend_conf.center=false"},
      {"++model.frontend_conf.fs=8k"},
      {"model.frontend_conf.n_fft=400"},
      {"model.frontend_conf.n_fft=many"},
      {"++model.frontend_conf.fmax=9000"},
      {"model.encoder_conf.attention_heads=3"},
      {"++model.encoder_conf.attention_head=2"},
      {"model.encoder_conf.output_size=0"},
      {"++model.encoder_conf.outputsize=4"},
      {"++model.encoder_conf.dropout_rate=2"},
      {"++model.decoder_conf.num_block=1"},
      {"model.model_conf.ctc_weight=1.5"},
      {"++model.model_conf.lsm_weigth=0.1"},
      {"++model.normalize=batchnorm"},
      {"++model.preencoder=sinc"},
      {"++model.specaug=specaugment"},
      {"++model.init=zeros"},
      {"++model.vocab_size=99"},
      {"model={_target_: espnet2.bin.asr_inference.Speech2Text, asr_model_file: a.pth}"},
      {"model={_target_: torchscrpt, path: a.pt}"},
      {"++init=ones"},
  };
  expect_agreement(cases, false);
}

TEST_F(Agreement, OnWhatIsRefusedOfTheData) {
  const std::vector<std::vector<std::string>> cases = {
      {"dataset.preprocessor.token_type=bpe"},
      {"dataset.preprocessor.token_type=word"},
      {"dataset.preprocessor.token_type=phn"},
      {"++dataset.preprocessor.g2p_type=g2p_en"},
      {"++dataset.preprocessor.unk_symbol=<oov>"},
      {"++dataset.preprocessor.audio_pad_value=1"},
      {"++dataset.preprocessor.noise_db_range=loud"},
      {"++dataset.preprocessor.speed_factors=[9.0]"},
      {"++dataset.preprocessor.data_aug_num=[2, 1]"},
      {"++dataset.preprocessor.volume=3"},
      {"++dataset.trian=[]"},
      {"dataset.train.0.data_src=jsnol"},
      {"++dataset.train.0.nmae=x"},
      {"++dataset.train.0.data_src_args.sample_rate=-1"},
      {"++tokenizer.model_type=wordpiece"},
      {"dataloader.train.iter_factory.batches.type=by_length"},
      {"dataloader.train.iter_factory.batches.batch_size=0"},
      {"++dataloader.train.iter_factory.num_workers=-1"},
      {"++dataloader.train.on_bad=ignore"},
      {"++dataloader.train.total_shards=3", "++dataloader.train.dist_world_size=2"},
      {"parallel.env=slrum"},
      {"parallel.n_workers=0"},
      {"++parallel.options.queue=gpu"},
      {"++parallel.retries=2"},
      {"++parallel.on_error=continue"},
      {"++parallel.devices=2"},
      {"parallel.env=slurm", "++parallel.options={cores: 1, memory: 32}"},
      // Files that nobody makes.
      {"dataset.train.0.data_src_args.manifest=nowhere.jsonl"},
      {"dataset.valid.0={data_src: kaldi, data_src_args: {wav_scp: nowhere.scp}}"},
      {"dataset.train.0={data_src: archive, data_src_args: {archive: nowhere.tta}}"},
      {"++dataset.preprocessor.noise_scp=nowhere.scp"},
      {"++model.normalize=global_mvn", "++model.normalize_conf.stats_file=nowhere.npz"},
      {"++init_param=[nowhere.pth]"},
      {"model.token_list=nowhere.txt"},
      {"++tokenizer.train_file=nowhere.txt"},
  };
  expect_agreement(cases, false);
}

TEST_F(Agreement, OnWhatIsRefusedOfTheTrainer) {
  const std::vector<std::vector<std::string>> cases = {
      {"trainer.accelerator=tpu"},
      {"trainer.max_epochs=soon"},
      {"++trainer.max_epoch=3"},
      {"trainer.limit_train_batches=0"},
      {"trainer.limit_train_batches=1.5"},
      {"++trainer.val_check_interval=0"},
      {"++trainer.check_val_every_n_epoch=null"},
      {"++trainer.gradient_clip_val=-1"},
      {"++trainer.gradient_clip_algorithm=agc"},
      {"++trainer.precision=fp16"},
      {"++trainer.accumulate_grad_batches=0"},
      {"++trainer.callbacks=early_stopping"},
      {"++trainer.callbacks=[{_target_: early_stop, monitor: valid/loss}]"},
      {"++trainer.callbacks=[{_target_: early_stopping, monitor: valid/wer}]"},
      {"++trainer.logger=[{_target_: wandb}]"},
      {"++trainer.benchmark=true"},
      {"++trainer.num_sanity_val_steps=-2"},
      {"++trainer.devices=0"},
      {"++trainer.strategy=deepspeed"},
      {"++trainer.strategy={_target_: ddp, bucket_cap: 3}"},
      {"++trainer.strategy={_target_: fsdp, sharding_strategy: zero3}"},
      {"++trainer.strategy={_target_: fsdp, units: [TransformerBlok]}"},
      {"++trainer.activation_checkpointing=[ConformerBlock]"},
      {"++trainer.sync_batchnorm=true"},
      {"++trainer.timeout=soon"},
      {"++trainer.max_time=forever"},
      {"++trainer.requeue_signal=SIGKILL"},
      {"++trainer.deterministic=maybe"},
      {"++trainer.gpus=2"},
      {"++trainer.seed_everything=1"},
      {"++trainer.track_grad_norm=2"},
      {"trainer.max_epochs=-1", "++trainer.max_steps=1",
       "++trainer.callbacks=[{_target_: swa, swa_lrs: 0.1}]"},
      // Nothing to look at.
      {"++trainer.limit_val_batches=0", "best_model_criterion=[[valid/acc, 2, max]]"},
      {"++trainer.limit_val_batches=0.0",
       "++trainer.callbacks=[{_target_: early_stopping, monitor: valid/loss}]"},
      {"++trainer.limit_val_batches=0",
       "++trainer.callbacks=[{_target_: lightning.pytorch.callbacks.ModelCheckpoint, monitor: "
       "valid/loss}]"},
      {"++trainer.limit_val_batches=0",
       "scheduler={_target_: torch.optim.lr_scheduler.ReduceLROnPlateau}"},
      {"++trainer.log_every_n_steps=-5"},
      {"++trainer.loss_average=sum"},
      {"optimizer._target_=torch.optim.Adma"},
      {"optimizer.lr=-0.1"},
      {"optimizer.lr=fast"},
      {"++optimizer.learning_rate=1"},
      {"++optimizer.betas=[0.9]"},
      {"++param_groups=[{weight_decay: 0}]"},
      {"++param_groups=[{match: bias, weight_deacy: 0}]"},
      {"++param_groups={match: bias}"},
      {"++optimizers=[{_target_: adam}]"},
      {"++optimizers={a: {optimizer: {_target_: adma}}}"},
      {"++optimizers={a: {optimizer: {_target_: adam}, param_groups: [{lr: 1}]}}"},
      {"++schedulers={a: {scheduler: {_target_: noam_lr}}}", "++optimizers={b: {optimizer: adam}}"},
      {"++optimizers={a: {optimizer: adam, params: {encoder: 1}}}"},
      {"++optimizers={a: {optimizer: {_target_: adam}, params: encoder}}"},
      {"scheduler._target_=torch.optim.lr_scheduler.OneCycle"},
      {"scheduler.warmup_steps=-5"},
      {"scheduler_interval=batch"},
      {"+scheduler_monitor=loss"},
      {"best_model_criterion=[[valid/wer, 3, min]]"},
      {"best_model_criterion=[[train/loss, 2, min]]"},
      {"++trainer.accumulate_grad_batches=2",
       "++trainer.callbacks=[{_target_: gradient_accumulation, scheduling: {0: 2}}]"},
      {"++trainer.enable_checkpointing=false",
       "++trainer.callbacks=[{_target_: model_checkpoint, monitor: valid/loss}]"},
      {"++trainer.strategy=single_device", "num_device=2", "++trainer.devices=2"},
      {"best_model_criterion=[[valid/accuracy, 3, max]]"},
      {"best_model_criterion=[[valid/loss, 0, min]]"},
      {"best_model_criterion=valid/loss"},
      {"++seed=-1"},
      {"num_device=0"},
      {"++fit.ckpt=last"},
  };
  expect_agreement(cases, false);
}

TEST_F(Agreement, AFileNeedsNoOption) {
  const CommandResult plain = run({"train", training(), "--dry_run"});
  EXPECT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_THAT(plain.out, testing::HasSubstr("train"));
  EXPECT_EQ(run({"run", "--stages", "train", training(), "--dry_run"}).exit_code, 0);
  EXPECT_EQ(run({"train", "no_such.yaml", "--dry_run"}).exit_code, 2);
  const CommandResult unknown = run({"train", training(), "--dry_run", "--parallel", "gpu"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.err, testing::HasSubstr("--parallel gpu: no block of this name"));
}

TEST_F(Agreement, ATrialRunIsNeverUpToDate) {
  const std::vector<std::string> trial = {"run",
                                          "--stages",
                                          "collect_stats",
                                          "train",
                                          "--training_config",
                                          training(),
                                          "exp_tag=t",
                                          "++trainer.fast_dev_run=true"};
  ASSERT_EQ(run(trial).exit_code, 0);
  const CommandResult again = run(trial);
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.err, testing::AllOf(testing::HasSubstr("collect_stats: up to date"),
                                        testing::Not(testing::HasSubstr("train: up to date"))));
}

TEST_F(Agreement, DecodingSaysThatNoValidationWasMade) {
  const CommandResult result =
      run({"run", "--stages", "collect_stats", "train", "infer", "--training_config", training(),
           "--inference_config", (folder_->path() / "inference.yaml").string(), "exp_tag=short",
           "training:trainer.max_epochs=-1", "++training:trainer.max_steps=1",
           "training:trainer.limit_train_batches=1.0"});
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err, testing::AllOf(testing::HasSubstr("no validation was made yet"),
                                         testing::HasSubstr("last/model.safetensors"),
                                         testing::Not(testing::HasSubstr("train stage first"))));
}

TEST_F(Agreement, OnWhatIsAccepted) {
  const std::vector<std::vector<std::string>> cases = {
      {"task=espnet2.tasks.asr.ASRTask"},
      {"model.encoder=conformer", "++model.encoder_conf.cnn_module_kernel=3"},
      {"model.encoder=e_branchformer", "++model.encoder_conf.cgmlp_linear_units=4"},
      {"model.decoder=transducer", "model.decoder_conf={hidden_size: 4}",
       "model.model_conf.ctc_weight=0.3"},
      {"model.decoder=null", "model.decoder_conf=null", "model.model_conf.ctc_weight=1.0"},
      {"model.frontend_conf.n_fft=1024", "++model.frontend_conf.n_mels=40"},
      {"++model.normalize=global_mvn",
       "++model.normalize_conf.stats_file=${stats_dir}/train/feats_stats.npz"},
      {"++model.specaug=specaug", "++model.specaug_conf.apply_time_mask=false"},
      {"++model.preencoder=null", "++model.preencoder_conf={}"},
      {"++model.init=xavier_uniform"},
      {"++dataset.preprocessor.space_symbol=<space>", "++dataset.preprocessor.unk_symbol=<unk>"},
      {"++dataset.preprocessor.text_cleaner=tacotron"},
      {"++dataset.preprocessor.speed_perturb=[0.9, 1.1]",
       "++dataset.preprocessor.min_sample_size=-1"},
      {"best_model_criterion=[[valid/acc, 2, max]]"},
      {"seed=3", "trainer.gradient_clip_val=0.5"},
      {"++trainer.strategy=ddp"},
      {"++trainer.limit_val_batches=0"},
      {"++trainer.limit_val_batches=0", "best_model_criterion=[]",
       "++trainer.callbacks=[{_target_: model_checkpoint, every_n_train_steps: 1}]"},
      {"++trainer.min_epochs=2",
       "++trainer.callbacks=[{_target_: swa, swa_lrs: 0.1, swa_epoch_start: 2}]"},
      {"optimizer._target_=torch.optim.AdamW", "++optimizer.betas=[0.9, 0.98]",
       "++param_groups=[{match: bias, weight_decay: 0}]", "scheduler_interval=epoch",
       "++trainer.precision=bf16-mixed", "++trainer.accumulate_grad_batches=2",
       "++trainer.gradient_clip_algorithm=value", "++trainer.deterministic=warn",
       "++trainer.max_time={hours: 1}", "++trainer.loss_average=mean_of_means",
       "++trainer.callbacks=[{_target_: early_stopping, monitor: valid/acc, mode: max}]",
       "++trainer.logger=false", "++trainer.enable_model_summary=false"},
      {"++optimizers={enc: {optimizer: {_target_: adam}, params: encoder, param_groups: [{dims: 1, "
       "weight_decay: 0}]}, rest: {optimizer: {_target_: sgd}, params: [decoder, \"ctc.*\"], "
       "gradient_clip_val: 1.0}}",
       "++schedulers={enc: {scheduler: {_target_: espnet2.schedulers.noam_lr.NoamLR}, "
       "interval: step}}"},
      {"trainer.limit_train_batches=1.0", "++trainer.val_check_interval=1",
       "++trainer.limit_val_batches=0.5", "++trainer.check_val_every_n_epoch=1",
       "++trainer.log_every_n_steps=0", "++trainer.requeue_signal=null",
       "dataloader.train.iter_factory.batches.type=sorted", "++dataloader.train.on_bad=skip",
       "++dataset.train.0.data_src_args.channel=first", "parallel.n_workers=2",
       "++parallel.on_error=skip", "++parallel.max_retries=0"},
  };
  expect_agreement(cases, true);
}

TEST_F(Agreement, WhatTrainingRefusesIsSaidBeforeStatisticsAreReplaced) {
  const auto both = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"run", "--stages", "collect_stats", "train", "--training_config",
                                 training(), "exp_tag=early"});
    return run(words);
  };
  const std::vector<std::string> two_ranks = {"num_device=2", "++trainer.devices=2",
                                              "++trainer.precision=bf16"};
  const CommandResult trained = both(two_ranks);
  ASSERT_TRUE(trained.ok()) << trained.err;
  // Two ranks read the config as well; one word about it is enough.
  EXPECT_EQ(split_on(trained.err, "'bf16' is read as 'bf16-mixed'"), 2U) << trained.err;
  const fs::path statistics = folder_->path() / "exp/stats_early/train/feats_stats.npz";
  const std::string before = read_file(statistics);
  const CommandResult changed = both({"model.frontend_conf.hop_length=200"});
  EXPECT_EQ(changed.exit_code, 2) << changed.err;
  EXPECT_THAT(changed.err, testing::HasSubstr("was trained with another config"));
  EXPECT_EQ(read_file(statistics), before);
}

TEST_F(Agreement, AnInferenceConfigWithoutAModelOrDataIsRefused) {
  const std::string file = (folder_->path() / "nothing_to_infer.yaml").string();
  for (const char* model : {"", "model:\n"}) {
    write_file_atomic(file, std::string(model) +
                                "recipe_dir: .\ndata_dir: .\nexp_dir: exp\n"
                                "inference_dir: out\ndataset: {test: []}\n");
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"config", "check", file}, {"infer", "--config", file}}) {
      const CommandResult result = run(words);
      EXPECT_EQ(result.exit_code, 2) << result.describe();
      for (const char* key : {"model", "dataset.test"})
        EXPECT_THAT(result.out + result.err,
                    testing::HasSubstr(fmt::format("key '{}' is missing", key)));
    }
  }
}

// The second set's results would stand where the first one's are looked for, or somewhere else.
TEST_F(Agreement, NamesOfSetsAreFoldersOfTheirOwn) {
  const std::string file = (folder_->path() / "inference.yaml").string();
  for (const auto& [sets, wrong] : std::vector<std::pair<std::string, std::string>>{
           {"[{name: a, data_src_args: {split: test}}, {name: a, data_src_args: {split: valid}}]",
            "got 'a', which another entry of dataset.test has"},
           {"[{name: ../a, data_src_args: {split: test}}]",
            "got '../a', expected the name of a folder"}})
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"config", "check", file}, {"infer", "--config", file}}) {
      std::vector<std::string> all = words;
      all.insert(all.end(), {"--training_config", training(), "dataset.test=" + sets});
      const CommandResult result = run(all);
      EXPECT_EQ(result.exit_code, 2) << result.describe();
      EXPECT_THAT(result.out + result.err, testing::HasSubstr(wrong));
    }
}

TEST_F(Agreement, AnAverageThatTrainingNeverWritesIsRefusedBeforeItBegins) {
  const std::string file = (folder_->path() / "inference.yaml").string();
  const auto check = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"config", "check", file, "--training_config", training()});
    words.insert(words.end(), {"exp_tag=unwritten", "exp_dir=${recipe_dir}/exp/unwritten"});
    return run(words);
  };
  const std::string by_accuracy = "best_model_criterion=[[valid/acc, 2, max]]";
  const auto names_both = testing::AllOf(testing::HasSubstr("model.asr_model_file"),
                                         testing::HasSubstr("got 'valid.loss.ave_1best.pth'"),
                                         testing::HasSubstr("valid.acc.ave_2best.pth"));
  const CommandResult checked = check({by_accuracy});
  EXPECT_EQ(checked.exit_code, 2) << checked.out;
  EXPECT_THAT(checked.out + checked.err, names_both);
  const CommandResult ran = run({"run", "--stages", "train", "infer", "--training_config",
                                 training(), "--inference_config", file, by_accuracy,
                                 "exp_tag=unwritten", "exp_dir=${recipe_dir}/exp/unwritten"});
  EXPECT_EQ(ran.exit_code, 2) << ran.out;
  EXPECT_THAT(ran.err, names_both);
  EXPECT_FALSE(fs::exists(folder_->path() / "exp/unwritten/checkpoints"));

  // Of how many may differ; lists of callbacks count; what is there already is nobody's business.
  const auto accepts = [&](const std::vector<std::string>& words) {
    const CommandResult result = check(words);
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  };
  accepts({by_accuracy, "model.asr_model_file=${exp_dir}/valid.acc.ave_10best.pth"});
  accepts(
      {by_accuracy,
       "++trainer.callbacks=[{_target_: model_checkpoint, monitor: valid/loss, save_top_k: 3}]"});
  accepts({by_accuracy, "model.asr_model_file=${exp_dir}/mine.pth"});
  fs::create_directories(folder_->path() / "exp/unwritten/checkpoints");
  write_file_atomic(folder_->path() / "exp/unwritten/checkpoints/valid.loss.ave_3best.safetensors",
                    "weights");
  accepts({by_accuracy});
}

TEST_F(Agreement, WhatIsWrongInACriterionIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"[[valid/acc, 2, maximum]]", "got 'maximum', expected min or max"},
      {"[[valid/acc, many, max]]", "got 'many', expected how many to keep, 1 or more"},
      {"[[valid/acc, max]]", "got a list of 2, expected [metric, how many, min|max]"}};
  for (const auto& [value, words] : cases) {
    const CommandResult result =
        run({"config", "check", training(), std::string("best_model_criterion=") + value});
    EXPECT_EQ(result.exit_code, 2) << value;
    EXPECT_THAT(result.out + result.err, testing::HasSubstr(words));
  }
}

TEST_F(Agreement, OnInference) {
  const CommandResult trained =
      run({"run", "--stages", "collect_stats", "train", "--training_config", training()});
  ASSERT_TRUE(trained.ok()) << trained.err;
  const std::string file = (folder_->path() / "inference.yaml").string();
  std::vector<Case> cases;
  const auto expect = [&](std::vector<std::string> overrides, bool is_fine) {
    overrides.push_back("inference_dir=${exp_dir}/inference" + std::to_string(cases.size()));
    cases.push_back(make_case({"config", "check", file}, {"infer", file}, overrides, is_fine));
  };
  const std::vector<std::string> refused = {"++model.lm_file=lm.pth",
                                            "++model.streaming=true",
                                            "++model.time_sync=true",
                                            "++model.transducer_conf={search_type: alsd}",
                                            "model.beam_size=-3",
                                            "model.beam_size=three",
                                            "++model.ctc_weight=1.5",
                                            "++model.dtype=float8",
                                            "++model.nbset=2",
                                            "~model.asr_model_file",
                                            "model._target_=espnet2.bin.tts_inference.Text2Speech",
                                            "++batch_size=0",
                                            "++output_fn=src.make",
                                            "++input_key=noise",
                                            "++dataset.test.0.data_src_args.channel=third",
                                            "++dataset.test.0.data_src_args.manifset=x",
                                            "++dataset.test.0.transform={_target_: nobody}"};
  for (const auto& text : refused) expect({text}, false);
  expect({"model.beam_size=50"}, true);
  expect({"++model.nbest=2", "++model.token_times=true"}, true);
  expect({"++model.batch_seconds=10", "++batch_size=2", "++model.ctc_weight=1.0"}, true);
  expect_agreement(std::move(cases));
}

}  // namespace
}  // namespace tutti::systems
