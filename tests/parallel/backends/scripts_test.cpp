// Golden headers of every scheduler, and the body run for real by a shell.
#include <fstream>

#include "tests/parallel/backends/support.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"
#include "tutti/parallel/backends/lsf.h"

namespace tutti::parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kMinimal[] = "{cores: 8, processes: 4, memory: 28GB}";

Submission example(int num_jobs = 1) {
  return {.num_jobs = num_jobs,
          .first_worker_id = 0,
          .folder = "/shared/run/scripts",
          .stem = "job-0",
          .log_folder = "/shared/run/logs"};
}

SubmissionText text_of(std::unique_ptr<Dialect> dialect, const std::string& yaml,
                       int num_jobs = 1) {
  return dialect->text(options_from(dialect->kind(), yaml), example_launch(), example(num_jobs));
}

TEST(SlurmScript, Minimal) {
  const auto text = text_of(make_slurm(), kMinimal);
  EXPECT_TRUE(text.script.starts_with("#!/usr/bin/env bash\n\n#SBATCH -J tutti-worker\n"))
      << text.script;
  EXPECT_THAT(header_of(text.script, "#SBATCH"),
              ElementsAre("-J tutti-worker", "-e /shared/run/logs/tutti-worker-%j.err",
                          "-o /shared/run/logs/tutti-worker-%j.out", "-n 1", "-N 1",
                          "--cpus-per-task=8", "--mem=27G", "-t 00:30:00"));
  EXPECT_EQ(text.submit_line, "sbatch --parsable /shared/run/scripts/job-0.sh");
}

TEST(SlurmScript, Full) {
  const auto text = text_of(make_slurm(),
                            "{cores: 8, processes: 4, memory: 28GB, job_name: myjob, "
                            "log_directory: /data/logs, queue: regular, account: acct, "
                            "walltime: '02:00:00', job_cpu: 16, job_mem: 100G, "
                            "job_extra_directives: ['--gres=gpu:1', '--qos=low']}",
                            3);
  EXPECT_THAT(
      header_of(text.script, "#SBATCH"),
      ElementsAre("-J myjob", "-e /data/logs/myjob-%A_%a.err", "-o /data/logs/myjob-%A_%a.out",
                  "-p regular", "-A acct", "-n 1", "-N 1", "--cpus-per-task=16", "--mem=100G",
                  "-t 02:00:00", "--array=0-2", "--gres=gpu:1", "--qos=low"));
}

TEST(SlurmScript, SkipsByExactNameAndGivesWayToExtras) {
  const auto skip =
      header_of(text_of(make_slurm(),
                        "{cores: 8, memory: 1GB, queue: a, job_directives_skip: ['-p', '--mem']}")
                    .script,
                "#SBATCH");
  EXPECT_THAT(skip, Not(::testing::Contains("-p a")));
  EXPECT_THAT(skip, ::testing::Contains("--cpus-per-task=8"));  // contains "-p", and stays
  const auto extra = header_of(text_of(make_slurm(),
                                       "{cores: 8, memory: 1GB, job_extra_directives: "
                                       "['--mem-per-cpu=2G', '--time=5', '--partition=b']}")
                                   .script,
                               "#SBATCH");
  EXPECT_THAT(extra,
              ElementsAre(HasSubstr("-J"), HasSubstr("-e"), HasSubstr("-o"), "-n 1", "-N 1",
                          "--cpus-per-task=8", "--mem-per-cpu=2G", "--time=5", "--partition=b"));
}

TEST(PbsScript, MinimalAndFull) {
  const auto minimal = text_of(make_pbs(), kMinimal);
  EXPECT_THAT(header_of(minimal.script, "#PBS"),
              ElementsAre("-N tutti-worker", "-l select=1:ncpus=8:mem=27GB", "-l walltime=00:30:00",
                          "-e /shared/run/logs/", "-o /shared/run/logs/"));
  EXPECT_EQ(minimal.submit_line, "qsub /shared/run/scripts/job-0.sh");
  EXPECT_THAT(minimal.script, HasSubstr("cd \"${PBS_O_WORKDIR:-.}\""));
  const auto full = text_of(
      make_pbs(),
      "{cores: 8, processes: 4, memory: 28GB, queue: regular, account: acct, walltime: '02:00:00', "
      "resource_spec: 'select=1:ncpus=24:mem=100GB', job_extra_directives: ['-j oe', '-m n']}",
      4);
  EXPECT_THAT(
      header_of(full.script, "#PBS"),
      ElementsAre("-N tutti-worker", "-q regular", "-A acct", "-l select=1:ncpus=24:mem=100GB",
                  "-l walltime=02:00:00", "-e /shared/run/logs/", "-o /shared/run/logs/", "-J 0-3",
                  "-j oe", "-m n"));
  EXPECT_THAT(full.script, HasSubstr("tutti_first=$((0 + PBS_ARRAY_INDEX * 4))"));
}

TEST(MoabScript, IsPbsThroughMsub) {
  const auto text = text_of(make_moab(), kMinimal);
  EXPECT_THAT(header_of(text.script, "#PBS"), ::testing::Contains("-l select=1:ncpus=8:mem=27GB"));
  EXPECT_EQ(text.submit_line, "msub /shared/run/scripts/job-0.sh");
}

TEST(SgeScript, RequestsCoresAndMemory) {
  const auto text = text_of(make_sge(),
                            "{cores: 8, processes: 4, memory: 28GB, queue: my-queue, project: "
                            "proj, walltime: '02:00:00'}",
                            2);
  EXPECT_THAT(header_of(text.script, "#$"),
              ElementsAre("-N tutti-worker", "-q my-queue", "-P proj", "-pe smp 8",
                          "-l mem_free=3338M", "-l h_rt=02:00:00", "-e /shared/run/logs/",
                          "-o /shared/run/logs/", "-cwd", "-j y", "-S /bin/bash", "-t 1-2"));
  EXPECT_EQ(text.submit_line, "qsub -terse /shared/run/scripts/job-0.sh");
  const auto own = header_of(
      text_of(make_sge(),
              "{cores: 2, memory: 1GB, memory_resource: h_vmem, parallel_environment: mpi, "
              "job_extra_directives: ['-pe fill 4', '-l h_rt=1:0:0']}")
          .script,
      "#$");
  EXPECT_THAT(own, ::testing::Contains("-l h_vmem=477M"));
  EXPECT_THAT(own, Not(::testing::Contains("-pe mpi 2")));
  EXPECT_THAT(own, Not(::testing::Contains("-l h_rt=00:30:00")));
}

TEST(LsfScript, UnitsAreTheClusters) {
  const auto text = text_of(make_lsf(),
                            "{cores: 8, processes: 4, memory: 28GB, queue: general, project: My "
                            "Proj, walltime: '02:00', lsf_units: mb}");
  EXPECT_THAT(
      header_of(text.script, "#BSUB"),
      ElementsAre("-J tutti-worker", "-e /shared/run/logs/tutti-worker-%J.err",
                  "-o /shared/run/logs/tutti-worker-%J.out", "-q general", "-P \"My Proj\"", "-n 8",
                  "-R \"span[hosts=1]\"", "-M 26703", "-R \"rusage[mem=26703]\"", "-W 02:00"));
  EXPECT_EQ(text.submit_line, "bsub < /shared/run/scripts/job-0.sh");
  EXPECT_EQ(text.submit.stdin_text, text.script);
  // No unit known: LSF's own defaults, KB for the limit and MB for the reservation.
  const auto plain = header_of(
      text_of(make_lsf(), "{cores: 1, memory: 1GiB, use_stdin: false}", 3).script, "#BSUB");
  EXPECT_THAT(plain, ::testing::IsSupersetOf({"-M 1048576", "-R \"rusage[mem=1024]\"",
                                              "-J \"tutti-worker[1-3]\"", "-W 00:30"}));
  EXPECT_EQ(text_of(make_lsf(), "{cores: 1, memory: 1GiB, use_stdin: false}").submit_line,
            "bsub /shared/run/scripts/job-0.sh");
}

TEST(LsfScript, ReadsTheUnitOfLsfConf) {
  EXPECT_EQ(parse_lsf_conf("LSF_X=1\n  LSF_UNIT_FOR_LIMITS = \"GB\" \n"), "gb");
  EXPECT_EQ(
      parse_lsf_conf("# LSF_UNIT_FOR_LIMITS=MB\nLSF_UNIT_FOR_LIMITS=MB\nLSF_UNIT_FOR_LIMITS=KB\n"),
      "kb");
  EXPECT_EQ(parse_lsf_conf("nothing"), "");
  EXPECT_EQ(lsf_memory(28'000'000'000, "gb"), 27U);
  EXPECT_EQ(lsf_memory(1, "kb"), 1U);
}

TEST(HTCondorScript, IsADescriptionBesideAScript) {
  const auto text =
      text_of(make_htcondor(),
              "{cores: 8, processes: 4, memory: 28GB, disk: 4GB, job_extra_directives: {+Extra: "
              "'True', requestmemory: 5}, "
              "submit_command_extra: [-verbose], job_directives_skip: [Stream_Error]}",
              4);
  EXPECT_TRUE(text.script.starts_with("#!/usr/bin/env condor_submit\n\n")) << text.script;
  for (const char* line :
       {"RequestCpus = 8\n", "RequestMemory = 5\n", "RequestDisk = 3906250\n", "+Extra = True\n",
        "Arguments = \"'/shared/run/scripts/job-0.sh' $(ProcId)\"\n", "\nQueue 4\n"})
    EXPECT_THAT(text.script, HasSubstr(line));
  EXPECT_THAT(text.script, Not(HasSubstr("Stream_Error")));
  EXPECT_THAT(text.beside.at("job-0.sh"), HasSubstr("tutti_first=$((0 + $1 * 4))"));
  EXPECT_EQ(text.submit_line, "condor_submit -terse -verbose /shared/run/scripts/job-0.sub");
}

TEST(OarScript, JoinsConditionsInOneProperty) {
  const auto text = text_of(
      make_oar(),
      "{cores: 8, processes: 4, memory: 28GB, queue: regular, project: proj, walltime: '02:00:00', "
      "memory_per_core_property_name: mem_core, job_extra_directives: ['-t besteffort', '-p "
      "gpu_count=1']}",
      2);
  EXPECT_THAT(header_of(text.script, "#OAR"),
              ElementsAre("-n tutti-worker", "-q regular", "--project proj",
                          "-l /nodes=1/core=8,walltime=02:00:00",
                          "-O /shared/run/logs/tutti-worker-%jobid%.out",
                          "-E /shared/run/logs/tutti-worker-%jobid%.err", "--array 2",
                          "-p (gpu_count=1) AND (mem_core>=3338)", "-t besteffort"));
  EXPECT_EQ(text.submit_line, "oarsub -S /shared/run/scripts/job-0.sh");
}

// Runs a script's body with a worker that writes down what it was told.
class ScriptBody : public ::testing::Test {
 protected:
  std::vector<std::string> run(const std::string& yaml, std::map<std::string, std::string> env,
                               int num_jobs = 1) {
    std::filesystem::create_directories(folder_.path() / "run/logs");
    WorkerLaunch launch;
    launch.run_folder = folder_.path() / "run";
    launch.command = {"/bin/sh", "-c",
                      "echo \"id $2 threads $TUTTI_WORKER_THREADS gpus $CUDA_VISIBLE_DEVICES drain "
                      "$TUTTI_WORKER_DRAIN_AT\" >> " +
                          shell_quote((folder_.path() / "said").string()),
                      "worker"};
    Submission submission = example(num_jobs);
    const auto options = options_from(SchedulerKind::kSlurm, yaml);
    const auto text = make_slurm()->text(options, launch, submission);
    write_file_atomic(folder_.path() / "job.sh", text.script, 0755);
    last = run_command({.argv = {"/bin/sh", (folder_.path() / "job.sh").string()},
                        .env = std::move(env),
                        .timeout = std::chrono::seconds(60)});
    auto lines = split(read_file(folder_.path() / "said"), '\n');
    std::sort(lines.begin(), lines.end());
    std::erase(lines, "");
    return lines;
  }
  TempFolder folder_;
  CommandResult last;
};

TEST_F(ScriptBody, GivesEachProcessItsIdAndShareOfGpus) {
  const auto said = run("{cores: 8, processes: 4, memory: 28GB}",
                        {{"SLURM_ARRAY_TASK_ID", "2"},
                         {"SLURM_ARRAY_JOB_ID", "7"},
                         {"CUDA_VISIBLE_DEVICES", "0,3,6,8"},
                         {"SLURM_JOB_END_TIME", "10000"}},
                        3);
  EXPECT_TRUE(last.ok()) << last.err;
  // walltime 30 min: a margin of 3 min, and up to half of that as stagger by worker number
  EXPECT_THAT(said,
              ElementsAre("id 10 threads 2 gpus 6 drain 9798", "id 11 threads 2 gpus 8 drain 9787",
                          "id 8 threads 2 gpus 0 drain 9820", "id 9 threads 2 gpus 3 drain 9809"));
}

TEST_F(ScriptBody, FewerGpusThanProcessesAreShared) {
  EXPECT_THAT(run("{cores: 3, processes: 3, memory: 1GB}",
                  {{"CUDA_VISIBLE_DEVICES", "4,5"}, {"SLURM_JOB_END_TIME", "10000"}}),
              ElementsAre(HasSubstr("id 0 threads 1 gpus 4"), HasSubstr("id 1 threads 1 gpus 5"),
                          HasSubstr("id 2 threads 1 gpus 4")));
}

TEST_F(ScriptBody, LeavesWithTheWorstExitCodeAfterTheEpilogue) {
  std::filesystem::create_directories(folder_.path() / "run/logs");
  WorkerLaunch launch;
  launch.run_folder = folder_.path() / "run";
  launch.command = {"/bin/sh", "-c", "exit $2", "worker"};  // the worker's number is its exit code
  const auto text = make_slurm()->text(
      options_from(SchedulerKind::kSlurm,
                   "{cores: 4, memory: 1GB, job_script_prologue: ['# a comment', 'export A=1'], "
                   "job_script_epilogue: [echo epilogue $A]}"),
      launch, example());
  write_file_atomic(folder_.path() / "job.sh", text.script, 0755);
  const auto result = run_command({.argv = {"/bin/sh", (folder_.path() / "job.sh").string()},
                                   .timeout = std::chrono::seconds(60)});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.out, "epilogue 1\n");
}

TEST_F(ScriptBody, PassesSignalsOnAndWaits) {
  const auto marker = folder_.path() / "drained";
  std::filesystem::create_directories(folder_.path() / "run/logs");
  WorkerLaunch launch;
  launch.run_folder = folder_.path() / "run";
  launch.command = {"/bin/bash", "-c",
                    "trap 'touch \"" + marker.string() + "\"; exit 85' TERM; touch " +
                        shell_quote((folder_.path() / "up").string()) +
                        "; while :; do sleep 0.05; done",
                    "worker"};
  const auto text = make_slurm()->text(
      options_from(SchedulerKind::kSlurm, "{cores: 1, memory: 1GB}"), launch, example());
  write_file_atomic(folder_.path() / "job.sh", text.script, 0755);
  Process job = Process::start({.argv = {"/bin/bash", (folder_.path() / "job.sh").string()}});
  for (int i = 0; i < 1000 && !std::filesystem::exists(folder_.path() / "up"); ++i)
    job.wait_for(std::chrono::milliseconds(20));
  ::kill(job.pid(), SIGUSR1);  // the script alone, as Slurm does with --signal=B:
  const auto status = job.wait_for(std::chrono::seconds(30));
  ASSERT_TRUE(status);
  EXPECT_TRUE(std::filesystem::exists(marker));
  EXPECT_EQ(status->exit_code, 85);
}

TEST(QuoteExpandable, KeepsVariablesAndNothingElse) {
  EXPECT_EQ(quote_expandable("/plain/path"), "/plain/path");
  EXPECT_EQ(quote_expandable("$TMPDIR/x y"), "\"$TMPDIR/x y\"");
  EXPECT_EQ(quote_expandable("a;rm -rf /"), "'a;rm -rf /'");
  EXPECT_EQ(quote_expandable("$A`x`"), "\"$A\\`x\\`\"");
}

}  // namespace
}  // namespace tutti::parallel
