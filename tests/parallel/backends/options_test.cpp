#include "tests/parallel/backends/support.h"

namespace tutti::parallel {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(JobQueueOptions, SplitsCoresAsDaskDoes) {
  const std::pair<int, int> table[] = {{1, 1},  {2, 2},  {3, 3},  {4, 4},  {5, 5},  {6, 3},
                                       {7, 7},  {8, 4},  {12, 4}, {16, 4}, {24, 6}, {28, 7},
                                       {32, 8}, {36, 6}, {40, 8}, {48, 8}, {64, 8}, {128, 16}};
  for (const auto& [cores, processes] : table)
    EXPECT_EQ(default_processes(cores), processes) << cores;
}

TEST(JobQueueOptions, CoresAndMemoryAreRequired) {
  const auto got = check("slurm", "{queue: gpu}");
  EXPECT_THAT(got.problems, HasSubstr("key 'cores' is missing"));
  EXPECT_THAT(got.problems, HasSubstr("key 'memory' is missing"));
}

TEST(JobQueueOptions, TheExampleOfTheGuideIsClean) {
  const auto got = check(
      "slurm",
      "{queue: gpu, account: my-lab, cores: 8, processes: 1, memory: 32GB, walltime: 04:00:00, "
      "job_extra_directives: ['--gres=gpu:1']}");
  EXPECT_EQ(got.problems, "");
  EXPECT_EQ(got.warnings, "");
}

TEST(JobQueueOptions, UnknownNamesAreErrorsWithAGuess) {
  EXPECT_THAT(check("slurm", "{cores: 1, memory: 1GB, wall_time: 1h}").problems,
              HasSubstr("did you mean 'walltime'?"));
}

TEST(JobQueueOptions, OptionsOfAnotherSchedulerSayWhereTheyBelong) {
  EXPECT_THAT(check("htcondor", "{cores: 1, memory: 1GB, disk: 1GB, walltime: 1h}").problems,
              HasSubstr("allowed_job_duration"));
  EXPECT_THAT(check("slurm", "{cores: 1, memory: 1GB, ncpus: 3}").problems,
              HasSubstr("is an option of lsf, not of slurm"));
  EXPECT_THAT(check("sge", "{cores: 1, memory: 1GB, account: a}").problems,
              HasSubstr("slurm, pbs, moab, not of sge"));
  EXPECT_THAT(check("slurm", "{cores: 1, memory: 1GB, n_workers: 3}").problems,
              HasSubstr("parallel.n_workers"));
  EXPECT_THAT(check("pbs", "{cores: 1, memory: 1GB, hosts: [a]}").problems,
              HasSubstr("option of ssh"));
}

TEST(JobQueueOptions, OldNamesWarnAndWork) {
  const auto got = check("slurm",
                         "{cores: 1, memory: 1GB, project: lab, env_extra: [module load gcc], "
                         "job_extra: ['--qos=low'], header_skip: ['--mem']}");
  EXPECT_EQ(got.problems, "");
  for (const char* old : {"'project' is an old name", "'env_extra' is an old name",
                          "'job_extra' is an old name", "'header_skip' is an old name"})
    EXPECT_THAT(got.warnings, HasSubstr(old));
  config::Problems problems;
  const auto options = parse_jobqueue_options(
      SchedulerKind::kSlurm,
      config::parse_yaml(
          "{cores: 1, memory: 1GB, project: lab, extra: [--lifetime, 55m, --lifetime-stagger=4m]}",
          "t"),
      problems);
  EXPECT_EQ(options.account, "lab");
  EXPECT_EQ(options.lifetime_s, 55 * 60);
  EXPECT_EQ(options.lifetime_stagger_s, 4 * 60);
  EXPECT_TRUE(options.worker_extra_args.empty());
}

TEST(JobQueueOptions, TheNewNameWinsUnlessItIsEmpty) {
  config::Problems problems;
  const auto both = parse_jobqueue_options(
      SchedulerKind::kSlurm,
      config::parse_yaml("{cores: 1, memory: 1GB, env_extra: [old], job_script_prologue: [new]}",
                         "t"),
      problems);
  EXPECT_THAT(both.job_script_prologue, ::testing::ElementsAre("new"));
  const auto empty = parse_jobqueue_options(
      SchedulerKind::kSlurm,
      config::parse_yaml("{cores: 1, memory: 1GB, env_extra: [old], job_script_prologue: []}", "t"),
      problems);
  EXPECT_THAT(empty.job_script_prologue, ::testing::ElementsAre("old"));
  EXPECT_TRUE(problems.empty()) << problems.describe();
}

TEST(JobQueueOptions, DashesAreAsGoodAsUnderscores) {
  const auto options = options_from(
      SchedulerKind::kSlurm,
      "{cores: 2, memory: 1GB, job-extra-directives: ['--qos=low'], death-timeout: 5}");
  EXPECT_THAT(options.extra_directives, ::testing::ElementsAre("--qos=low"));
  EXPECT_EQ(options.death_timeout, 5);
}

TEST(JobQueueOptions, DaskOnlyNamesAreTranslatedOrExplained) {
  const auto got = check("slurm",
                         "{cores: 2, memory: 1GB, nanny: false, silence_logs: error, config_name: "
                         "x, security: true, python: /usr/bin/python3, "
                         "protocol: 'tls://', scheduler_options: {dashboard_address: ':0'}}");
  EXPECT_EQ(got.problems, "");
  for (const char* key : {"nanny", "silence_logs", "config_name", "security", "python", "protocol",
                          "dashboard_address"})
    EXPECT_THAT(got.warnings, HasSubstr(key));
  EXPECT_THAT(
      check("slurm", "{cores: 2, memory: 1GB, scheduler_options: {interface: ib0}}").problems,
      HasSubstr("parallel.interface"));
  EXPECT_THAT(
      check("slurm", "{cores: 2, memory: 1GB, worker_extra_args: [--nthreads, 2]}").problems,
      HasSubstr("flag of dask-worker"));
  const auto options = options_from(SchedulerKind::kSlurm,
                                    "{cores: 2, memory: 1GB, python: apptainer exec $IMG python3}");
  EXPECT_THAT(options.launcher, ::testing::ElementsAre("apptainer", "exec", "$IMG"));
}

TEST(JobQueueOptions, UnevenSharesAndBadTimesAreRefused) {
  EXPECT_THAT(check("slurm", "{cores: 7, processes: 2, memory: 1GB}").problems,
              HasSubstr("cannot be shared evenly"));
  EXPECT_THAT(check("slurm", "{cores: 2, memory: 1GB, walltime: soon}").problems,
              HasSubstr("got 'soon'"));
  EXPECT_THAT(check("slurm", "{cores: 2, memory: 1GB, walltime: '02:75:00'}").problems,
              HasSubstr("got '02:75:00', expected a time such as 02:00:00"));
  EXPECT_THAT(check("slurm", "{cores: 2, memory: lots}").problems, HasSubstr("'lots'"));
  EXPECT_THAT(check("htcondor", "{cores: 2, memory: 1GB}").problems,
              HasSubstr("key 'disk' is missing"));
}

// Workers leave before the end that the scheduler goes by.
TEST(JobQueueOptions, ATimeLimitAmongTheDirectivesIsTheWalltime) {
  using K = SchedulerKind;
  const auto seconds = [](K kind, const std::string& directive) {
    return options_from(kind,
                        "{cores: 2, memory: 1GB, job_extra_directives: ['" + directive + "']}")
        .walltime_s;
  };
  EXPECT_EQ(seconds(K::kSlurm, "--time=02:00:00"), 7200);
  EXPECT_EQ(seconds(K::kSlurm, "-t 90"), 5400);
  EXPECT_EQ(seconds(K::kPbs, "-l walltime=01:00:00"), 3600);
  EXPECT_EQ(seconds(K::kMoab, "-l nodes=1,walltime=01:00:00"), 3600);
  EXPECT_EQ(seconds(K::kSge, "-l h_rt=7200"), 7200);
  EXPECT_EQ(seconds(K::kLsf, "-W 02:00"), 7200);
  EXPECT_EQ(seconds(K::kSlurm, "--gres=gpu:1"), 1800);
  const Checked both = check(
      "slurm",
      "{cores: 2, memory: 1GB, walltime: '01:00:00', job_extra_directives: ['--time=02:00:00']}");
  EXPECT_EQ(both.problems, "");
  EXPECT_THAT(both.warnings,
              HasSubstr("'--time=02:00:00' is the limit, and not walltime: 01:00:00"));
  EXPECT_THAT(
      check("slurm", "{cores: 2, memory: 1GB, job_extra_directives: ['--time=soon']}").warnings,
      HasSubstr("the time in '--time=soon' is not understood"));
}

TEST(JobQueueOptions, WorkersThatDoNotFillTheirJobsArePointedOut) {
  const std::string options = "{cores: 8, processes: 4, memory: 8GB}";
  EXPECT_THAT(check("slurm", options, 15).warnings,
              HasSubstr("15 workers in jobs of 4: 4 jobs, so that 16 will start"));
  EXPECT_EQ(check("slurm", options, 16).warnings, "");
}

TEST(JobQueueOptions, NothingCanSmuggleInALine) {
  EXPECT_THAT(
      check("slurm", "{cores: 1, memory: 1GB, queue: \"a\\n#SBATCH --exclusive\"}").problems,
      HasSubstr("line break"));
  EXPECT_THAT(check("slurm", "{cores: 1, memory: 1GB, job_name: 'a b'}").problems,
              HasSubstr("one word"));
}

TEST(JobQueueOptions, ASkipThatNamesNothingWarns) {
  EXPECT_THAT(check("slurm", "{cores: 1, memory: 1GB, job_directives_skip: ['--memory']}").warnings,
              HasSubstr("'--memory' names none"));
  EXPECT_THAT(check("slurm", "{cores: 1, memory: 1GB, job_directives_skip: ['--mem']}").warnings,
              Not(HasSubstr("names none")));
}

TEST(JobQueueOptions, ExtraDirectivesMayBeAMap) {
  const auto options = options_from(SchedulerKind::kSlurm,
                                    "{cores: 1, memory: 1GB, job_extra_directives: {--gres: gpu:1, "
                                    "-C: geyser, --exclusive: null}}");
  EXPECT_THAT(options.extra_directives,
              ::testing::ElementsAre("--gres=gpu:1", "-C geyser", "--exclusive"));
  EXPECT_THAT(check("slurm", "{cores: 1, memory: 1GB, job_extra_directives: [gres=gpu]}").problems,
              HasSubstr("begin it with a dash"));
  EXPECT_THAT(
      check("htcondor", "{cores: 1, memory: 1GB, disk: 1GB, job_extra_directives: [x]}").problems,
      HasSubstr("expected a map"));
}

TEST(Walltime, IsReadAsTheSchedulerReadsIt) {
  using K = SchedulerKind;
  EXPECT_EQ(parse_walltime(K::kSlurm, "30"), 1800);
  EXPECT_EQ(parse_walltime(K::kSlurm, "10:00"), 600);
  EXPECT_EQ(parse_walltime(K::kSlurm, "12:00:00"), 43200);
  EXPECT_EQ(parse_walltime(K::kSlurm, "1-12"), 129600);
  EXPECT_EQ(parse_walltime(K::kLsf, "02:00"), 7200);
  EXPECT_EQ(parse_walltime(K::kLsf, "90"), 5400);
  EXPECT_EQ(parse_walltime(K::kOar, "2"), 7200);
  EXPECT_EQ(parse_walltime(K::kPbs, "3600"), 3600);
  for (const K kind : {K::kSlurm, K::kPbs, K::kSge, K::kLsf, K::kOar}) {
    EXPECT_EQ(parse_walltime(kind, "90m"), 5400);
    EXPECT_EQ(parse_walltime(kind, "02:00:00"), 7200);
    EXPECT_EQ(parse_walltime(kind, "1-00:00:00"), 86400);
    for (const char* slip : {"x", "02:75:00", "02:00:60", "1-02:60:00", "10:99"})
      EXPECT_FALSE(parse_walltime(kind, slip)) << slip;
  }
}

TEST(Walltime, IsWrittenAsTheSchedulerWantsIt) {
  using K = SchedulerKind;
  const auto as = [](K kind, const std::string& text) {
    return format_walltime(kind, text, *parse_walltime(kind, text));
  };
  EXPECT_EQ(as(K::kSlurm, "04:00:00"), "04:00:00");
  EXPECT_EQ(as(K::kSlurm, "90m"), "01:30:00");
  EXPECT_EQ(as(K::kSlurm, "1-12:00:00"), "1-12:00:00");
  EXPECT_EQ(as(K::kSlurm, "36h"), "1-12:00:00");
  EXPECT_EQ(as(K::kPbs, "36h"), "36:00:00");
  EXPECT_EQ(as(K::kPbs, "1-12:00:00"), "36:00:00");
  EXPECT_EQ(as(K::kLsf, "02:00"), "02:00");
  EXPECT_EQ(as(K::kLsf, "02:00:30"), "02:01");
  EXPECT_EQ(as(K::kSge, "10:00"), "00:10:00");
}

TEST(Memory, MatchesTheTable) {
  struct Row {
    const char* text;
    const char* slurm;
    const char* pbs;
  };
  const Row rows[] = {
      {"1B", "1K", "1B"},        {"500MiB", "500M", "500MB"}, {"1GB", "954M", "954MB"},
      {"1GiB", "1G", "1024MB"},  {"8GB", "8G", "7630MB"},     {"16GB", "15G", "15GB"},
      {"28GB", "27G", "27GB"},   {"109 GB", "102G", "102GB"}, {"1TB", "932G", "932GB"},
      {"2.5GB", "3G", "2385MB"}, {"1234B", "2K", "1234B"},    {"12345678", "12M", "12MB"}};
  for (const Row& row : rows) {
    const auto options =
        options_from(SchedulerKind::kSlurm, std::string("{cores: 1, memory: '") + row.text + "'}");
    EXPECT_EQ(slurm_memory(options.memory.count), row.slurm) << row.text;
    EXPECT_EQ(pbs_memory(options.memory.count), row.pbs) << row.text;
  }
}

}  // namespace
}  // namespace tutti::parallel
