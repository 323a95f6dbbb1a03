#include "apps/run_arguments.h"

#include <CLI/CLI.hpp>

namespace tutti::apps {

void add_run_options(CLI::App& app, const std::string& name, RunArguments& out) {
  if (name == "run") {
    app.add_option("--stages", out.stages, "names, or all");
    app.add_option("--stage", out.first, "first stage by number");
    app.add_option("--stop_stage", out.last, "last stage by number");
  }
  app.add_option("--config", out.files,
                 "config files of the stage; later ones merge over earlier ones");
  app.add_option("--training_config", out.request.training, "training config files");
  app.add_option("--inference_config", out.request.inference, "inference config files");
  app.add_option("--metrics_config", out.request.metrics, "metrics config files");
  app.add_option("--demo_config", out.request.demo, "demo config files");
  app.add_option("--parallel", out.request.parallel,
                 "name of the parallel block to use: parallel_gpu, or just gpu");
  app.add_flag("--dry_run", out.dry_run, "print the stages that would run");
  app.add_flag("--force", out.request.force,
               "run stages again although their inputs did not change; training starts over and "
               "keeps the old checkpoints in checkpoints.before");
  if (name == "run" || name == "train")
    app.add_option("--continue_with", out.request.continue_with,
                   "keys (optimizer.lr) in which this config may differ from the one that exp_dir "
                   "was trained with");
  app.add_flag("--quiet", out.quiet, "warnings and errors only");
  if (name == "infer") {
    auto* model =
        app.add_option("--model", out.transcribe.model,
                       "a packed model: decode the audio files, folders, or - (stdin) that follow; "
                       "the pack holds its own settings, key=value changes them");
    // Of stages of a recipe: a file they name would be left unread without a word.
    for (const char* other :
         {"--config", "--training_config", "--inference_config", "--metrics_config",
          "--demo_config", "--parallel", "--dry_run", "--force"})
      model->excludes(app.get_option(other));
    app.add_option("--device", out.transcribe.device, "with --model: auto, cpu, cuda or cuda:N");
    auto* json = app.add_flag("--json", out.as_json, "with --model: a JSON object per file");
    auto* srt = app.add_flag("--srt", out.as_srt,
                             "with --model: SubRip subtitles; of several files into --output_dir")
                    ->excludes(json);
    auto* vtt = app.add_flag("--vtt", out.as_vtt,
                             "with --model: WebVTT subtitles; of several files into --output_dir")
                    ->excludes(json)
                    ->excludes(srt);
    app.add_flag("--ctm", out.as_ctm, "with --model: NIST CTM, a line per word")
        ->excludes(json)
        ->excludes(srt)
        ->excludes(vtt);
    auto* output_dir =
        app.add_option("--output_dir", out.transcribe.output_dir,
                       "with --srt or --vtt: write NAME.srt or NAME.vtt of each audio file there")
            ->needs(model);
    app.add_flag("--missing", out.transcribe.only_missing,
                 "only audio files that have no subtitles in --output_dir yet")
        ->needs(output_dir);
  }
  app.add_option("overrides", out.request.overrides,
                 name == "infer" ? "key=value, config files, or audio files with --model"
                                 : "key=value, or config files");
}

}  // namespace tutti::apps
