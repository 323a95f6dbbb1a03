// What schedulers answer, odd answers included.
#include "tests/parallel/backends/support.h"
#include "tutti/core/error.h"
#include "tutti/parallel/backends/htcondor.h"
#include "tutti/parallel/backends/lsf.h"
#include "tutti/parallel/backends/oar.h"
#include "tutti/parallel/backends/pbs.h"
#include "tutti/parallel/backends/sge.h"
#include "tutti/parallel/backends/slurm.h"

namespace tutti::parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(SlurmAnswers, JobIdIsAloneOnItsLine) {
  EXPECT_THAT(parse_sbatch("123456\n", 1), ElementsAre("123456"));
  EXPECT_THAT(parse_sbatch("654321;cluster\n", 1), ElementsAre("654321"));
  EXPECT_THAT(parse_sbatch("sbatch: info: 2 jobs pending for user\n777\n", 1), ElementsAre("777"));
  EXPECT_THAT(parse_sbatch("88\n", 3), ElementsAre("88_0", "88_1", "88_2"));
  EXPECT_THAT(parse_sbatch("Submitted batch job 42 on cluster c1\n", 1), IsEmpty());
  EXPECT_THAT(parse_sbatch("", 1), IsEmpty());
}

TEST(SlurmAnswers, States) {
  const auto states = parse_squeue(
      "welcome to the "
      "cluster\n12_3|RUNNING|n7|None\n12_[4-5,9%2]|PENDING||Resources\n13|PENDING||("
      "QOSMaxCpuPerUserLimit|odd)\n"
      "14|COMPLETED|n1|None\n15|TIMEOUT|n1|TimeLimit\n16|FAILED|n2|NonZeroExitCode\n"
      "17|CANCELLED|n1|None\n18|WHAT_IS_THIS||None\n19|COMPLETING|n1|None\n");
  EXPECT_EQ(states.at("12_3").node, "n7");
  EXPECT_EQ(states.at("16").node, "n2");
  EXPECT_EQ(states.at("12_3").phase, JobPhase::kRunning);
  for (const char* id : {"12_4", "12_5", "12_9"}) EXPECT_EQ(states.at(id).reason, "Resources");
  EXPECT_EQ(states.at("13").reason, "(QOSMaxCpuPerUserLimit|odd)");
  EXPECT_EQ(states.at("14").phase, JobPhase::kEnded);
  EXPECT_TRUE(states.at("15").preempted);
  EXPECT_EQ(states.at("16").reason, "FAILED: NonZeroExitCode");
  EXPECT_FALSE(states.at("16").preempted);
  EXPECT_TRUE(states.at("17").preempted);
  EXPECT_EQ(states.at("18").phase, JobPhase::kFailed);
  EXPECT_EQ(states.at("19").phase, JobPhase::kRunning);
  EXPECT_EQ(states.size(), 11U);
}

TEST(SlurmAnswers, AJobHeldAfterAFailedLaunchMustGo) {
  const auto queue =
      parse_squeue("20|PENDING||launch failed requeued held\n21|PENDING||JobHeldUser\n");
  EXPECT_EQ(queue.at("20").phase, JobPhase::kFailed);
  EXPECT_TRUE(queue.at("20").must_remove);
  EXPECT_EQ(queue.at("21").phase, JobPhase::kPending) << "somebody wants it to wait";
  EXPECT_TRUE(parse_scontrol("JobId=22 JobState=PENDING Reason=launch_failed_requeued_held\n")
                  .at("22")
                  .must_remove);
}

TEST(SlurmAnswers, AccountsAndControl) {
  const auto accounts = parse_sacct(
      "12_0|COMPLETED|0:0\n12_1|FAILED|3:0\n12_1.batch|FAILED|3:0\n13|CANCELLED by "
      "0|0:15\n14|OUT_OF_ME+|0:125\n");
  EXPECT_EQ(accounts.at("12_0").phase, JobPhase::kEnded);
  EXPECT_EQ(accounts.at("12_1").reason, "FAILED: exit code 3");
  EXPECT_TRUE(accounts.at("13").preempted);
  EXPECT_FALSE(accounts.at("14").preempted);
  EXPECT_EQ(accounts.size(), 4U);
  const auto control = parse_scontrol(
      "JobId=45 ArrayJobId=40 ArrayTaskId=5 JobName=x JobState=NODE_FAIL Reason=None "
      "ExitCode=0:1\nJobId=46 JobState=RUNNING Reason=None\n");
  EXPECT_TRUE(control.at("40_5").preempted);
  EXPECT_EQ(control.at("46").phase, JobPhase::kRunning);
}

TEST(PbsAnswers, JobIds) {
  EXPECT_THAT(parse_qsub("1234.server\n", 1), ElementsAre("1234.server"));
  EXPECT_THAT(parse_qsub("INFO: 3 nodes free\n99.srv\n", 1), ElementsAre("99.srv"));
  EXPECT_THAT(parse_qsub("1234[].server\n", 2), ElementsAre("1234[0].server", "1234[1].server"));
  EXPECT_THAT(parse_qsub("Request 654321.asdf was sumbitted to queue: standard.\n", 1), IsEmpty());
  EXPECT_THAT(parse_qsub("1234.server\n", 2), IsEmpty());
}

TEST(PbsAnswers, States) {
  const auto json = parse_qstat_json(R"(banner
{"Jobs":{"1.s":{"job_state":"Q","comment":"Not Running: Insufficient amount of resource: ncpus"},
 "2.s":{"job_state":"R"},"3.s":{"job_state":"F","Exit_status":0},"4.s":{"job_state":"F","Exit_status":271},"5.s":{"job_state":"F","Exit_status":2}}})");
  EXPECT_THAT(json.at("1.s").reason, HasSubstr("Insufficient amount"));
  EXPECT_EQ(json.at("2.s").phase, JobPhase::kRunning);
  EXPECT_EQ(json.at("3.s").phase, JobPhase::kEnded);
  EXPECT_TRUE(json.at("4.s").preempted);
  EXPECT_FALSE(json.at("5.s").preempted);
  EXPECT_THROW(parse_qstat_json("{\"Jobs\": {\"1\": "), DataError);
  const auto full = parse_qstat_full(
      "Job Id: 7.s\n    Job_Name = x\n    job_state = H\n    comment = held for a\n\treason\n\nJob "
      "Id: 8.s\n    job_state = C\n    exit_status = 1\n");
  EXPECT_EQ(full.at("7.s").reason, "held for areason");
  EXPECT_EQ(full.at("8.s").reason, "exit code 1");
}

TEST(MoabAnswers, IdsAndStates) {
  EXPECT_EQ(parse_msub("\nMoab.1234\n"), "Moab.1234");
  EXPECT_EQ(parse_msub("1234\n"), "1234");
  EXPECT_EQ(parse_msub("ERROR: no 12 nodes\n"), "");
  EXPECT_EQ(parse_checkjob("job 1\n\nState: Idle\nBLOCK MSG: job hold active\n").reason,
            "job hold active");
  EXPECT_EQ(parse_checkjob("State: Running\n").phase, JobPhase::kRunning);
  EXPECT_EQ(parse_checkjob("State: Completed\nCompletion Code: 0  Time: x\n").phase,
            JobPhase::kEnded);
  EXPECT_EQ(parse_checkjob("State: Completed\nCompletion Code: 9\n").phase, JobPhase::kFailed);
  EXPECT_TRUE(parse_checkjob("State: Removed\n").preempted);
}

TEST(SgeAnswers, IdsAndStates) {
  EXPECT_THAT(parse_qsub_terse("12345\n", 1), ElementsAre("12345"));
  EXPECT_THAT(parse_qsub_terse("12345.1-2:1\n", 2), ElementsAre("12345.1", "12345.2"));
  EXPECT_THAT(parse_qsub_terse("Your job 12345 (\"x\") has been submitted\n", 1), IsEmpty());
  const auto states = parse_qstat_xml(
      "<?xml version='1.0'?><job_info><queue_info><job_list "
      "state=\"running\"><JB_job_number>5</JB_job_number><state>r</state><tasks>1</tasks></"
      "job_list>"
      "</queue_info><job_info><job_list "
      "state=\"pending\"><JB_job_number>5</JB_job_number><state>qw</state><tasks>2-4:1</tasks></"
      "job_list>"
      "<job_list "
      "state=\"pending\"><JB_job_number>6</JB_job_number><state>Eqw</state></job_list></job_info></"
      "job_info>");
  EXPECT_EQ(states.at("5.1").phase, JobPhase::kRunning);
  for (const char* id : {"5.2", "5.3", "5.4"}) EXPECT_EQ(states.at(id).phase, JobPhase::kPending);
  EXPECT_EQ(states.at("6").phase, JobPhase::kFailed);
  EXPECT_TRUE(states.at("6").must_remove);
  EXPECT_EQ(parse_qacct("====\nfailed       0    \nexit_status  0                   \n").phase,
            JobPhase::kEnded);
  EXPECT_EQ(parse_qacct("failed       0    \nexit_status  3\n").reason, "exit code 3");
  EXPECT_TRUE(parse_qacct("failed       100 : assumedly after job\nexit_status  137\n").preempted);
}

TEST(SgeAnswers, SayWhyAJobWaitsAndWhatTheHostsHave) {
  EXPECT_EQ(parse_scheduling_info("job_type:   NONE\nscheduling info:            (-l mem_free=9G) "
                                  "cannot run at host \"a\"\n       and more\n"),
            "(-l mem_free=9G) cannot run at host \"a\"");
  EXPECT_EQ(parse_scheduling_info("job_type: NONE\n"), "");
  const std::string head = "HOSTNAME ARCH NCPU NSOC NCOR NTHR LOAD MEMTOT MEMUSE SWAPTO SWAPUS\n";
  const auto largest = parse_qhost(head + "-----\nglobal - - - - - - - - - -\n" +
                                   "a lx-amd64 2 1 2 2 6.33 23.5G 3.2G 0.0 0.0\n" +
                                   "b lx-amd64 2 1 2 2 0.10 512.0M 3.2G 0.0 0.0\n");
  EXPECT_EQ(largest.name, "a");
  EXPECT_EQ(largest.memory, "23.5G");
  EXPECT_EQ(largest.bytes, std::uint64_t{47} << 29);
  EXPECT_EQ(parse_qhost("HOSTNAME ARCH NCPU LOAD MEMTOT\nold lx 4 0.1 1.0G\n").bytes, 1U << 30);
  EXPECT_EQ(parse_qhost("error: commlib error").bytes, 0U);
}

TEST(CondorAnswers, TellTheLargestMachine) {
  EXPECT_EQ(parse_condor_memory("node1 2048\nnode2 4096\nnode3 undefined\n"),
            std::pair(std::uint64_t{4096}, std::string("node2")));
  EXPECT_EQ(parse_condor_memory("").first, 0U);
}

TEST(LsfAnswers, IdsAndStates) {
  EXPECT_THAT(parse_bsub("MEMLIMIT 8000 MB\nJob <12345> is submitted to queue <q>.\n", 1),
              ElementsAre("12345"));
  EXPECT_THAT(parse_bsub("Job <9> is submitted to default queue <normal>.\n", 2),
              ElementsAre("9[1]", "9[2]"));
  EXPECT_THAT(parse_bsub("Job <9> not submitted\n", 1), IsEmpty());
  const auto states = parse_bjobs(
      "1|0|PEND|-|-|New job is waiting for "
      "scheduling;\n2|1|RUN|-|-|-\n2[2]|2|DONE|-|-|-\n3|0|EXIT|130|TERM_RUNLIMIT: job killed after "
      "reaching LSF run time limit|-\n"
      "4|0|EXIT|1|-|-\nodd line\n");
  EXPECT_THAT(states.at("1").reason, HasSubstr("waiting for scheduling"));
  EXPECT_EQ(states.at("2[1]").phase, JobPhase::kRunning);
  EXPECT_EQ(states.at("2[2]").phase, JobPhase::kEnded);
  EXPECT_TRUE(states.at("3").preempted);
  EXPECT_EQ(states.at("4").reason, "exit code 1");
}

TEST(HTCondorAnswers, IdsAndStates) {
  EXPECT_THAT(parse_condor_submit("1234.0 - 1234.2\n", 3),
              ElementsAre("1234.0", "1234.1", "1234.2"));
  EXPECT_THAT(parse_condor_submit("WARNING: 2.5 GB of memory\n7.0 - 7.0\n", 1), ElementsAre("7.0"));
  EXPECT_THAT(parse_condor_submit("no\n", 1), IsEmpty());
  EXPECT_THAT(parse_condor_json(""), IsEmpty());
  const auto states = parse_condor_json(
      R"([{"ClusterId":1,"ProcId":0,"JobStatus":1},{"ClusterId":1,"ProcId":1,"JobStatus":2},{"ClusterId":1,"ProcId":2,"JobStatus":5,"HoldReason":"no such file"},
      {"ClusterId":1,"ProcId":3,"JobStatus":4,"ExitCode":0},{"ClusterId":1,"ProcId":4,"JobStatus":4,"ExitSignal":9},{"ClusterId":1,"ProcId":5,"JobStatus":3},{"x":1}])");
  EXPECT_EQ(states.at("1.0").phase, JobPhase::kPending);
  EXPECT_EQ(states.at("1.2").reason, "held: no such file");
  EXPECT_TRUE(states.at("1.2").must_remove);
  EXPECT_EQ(states.at("1.3").phase, JobPhase::kEnded);
  EXPECT_EQ(states.at("1.4").reason, "killed by signal 9");
  EXPECT_TRUE(states.at("1.5").preempted);
}

TEST(OarAnswers, IdsAndStates) {
  EXPECT_THAT(parse_oarsub("[ADMISSION RULE] x 9\nOAR_JOB_ID=12345\n", 1), ElementsAre("12345"));
  EXPECT_THAT(parse_oarsub("OAR_JOB_ID=1\nOAR_JOB_ID=2\nOAR_ARRAY_ID=1\n", 2),
              ElementsAre("1", "2"));
  EXPECT_THAT(parse_oarsub("12345\n", 1), IsEmpty());
  const auto states = parse_oarstat(
      R"x({"1":{"state":"Waiting","message":"R=1"},"2":{"state":"Running"},"3":{"state":"Terminated","exit_code":"768 (3,0,0)"},
      "4":{"state":"Terminated","exit_code":"0 (0,0,0)"},"5":{"state":"Error","message":"walltime"}})x");
  EXPECT_EQ(states.at("1").reason, "Waiting: R=1");
  EXPECT_EQ(states.at("3").reason, "exit code 3");
  EXPECT_EQ(states.at("4").phase, JobPhase::kEnded);
  EXPECT_TRUE(states.at("5").preempted);
}

}  // namespace
}  // namespace tutti::parallel
