// The beds, each in its own words: how a job is asked for, cancelled, put back into the queue,
// how a node dies there, and what is refused. faults_test.cpp runs one table of faults over all.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/parallel/cluster/bed.h"

namespace tutti::parallel {

// What a user may get wrong, and a part of the scheduler's answer.
struct Refusal {
  std::string options;  // ", queue: nowhere"
  std::string words;
};

class ClusterBed : public BedTest {
 protected:
  // A `parallel:` block. `more` adds options; `walltime` replaces the bed's (long) one.
  virtual std::string block(int n_workers, const std::string& more = "",
                            const std::string& walltime = "") const = 0;
  // The same with the workers on different nodes, where the bed does not do that by itself.
  virtual std::string spread_block(int n_workers) const { return block(n_workers); }
  virtual std::vector<Refusal> refusals() const = 0;

  // Ids of jobs that run now, as the commands below take them. Beds without jobs have none.
  virtual std::vector<std::string> running_jobs() const { return {}; }
  virtual bool queue_is_empty() const { return true; }
  // Shell lines; empty: there is no such thing here, and `why_not` says so.
  virtual std::string cancel_line(const std::string& /*job*/) const { return ""; }
  virtual std::string requeue_line(const std::string& /*job*/) const { return ""; }
  // Makes a requeued job start sooner than the scheduler would; called over and over.
  virtual void hurry(const std::string& /*job*/) const {}
  // Takes a node away while jobs run on it; returns how to bring it back. Null: cannot be done.
  virtual std::function<void()> take_a_node_down(const std::filesystem::path& /*out*/) const {
    return {};
  }
  // The commands that ask for the state of jobs, or, where there is nobody to ask, start workers.
  virtual std::vector<std::string> query_commands() const = 0;
  // Which of their calls may hang: a pattern of the shell for all arguments.
  virtual std::string query_pattern() const { return "*"; }
  // Makes the driver call them, where it would not by itself.
  virtual void provoke_a_query(const std::filesystem::path& /*out*/) const {}
  // Jobs run this shell line before their workers.
  virtual std::string prologue_block(int n_workers, const std::string& line) const {
    return block(n_workers, ", job_script_prologue: ['" + line + "']");
  }
  // Options that make workers leave after 12 s (a busy machine takes some to start them); empty: no time limits here.
  virtual std::string short_lived_block(int n_workers) const = 0;
  // Jobs whose time is up before their workers begin; empty: no walltimes of seconds here.
  virtual std::string stillborn_block(int /*n_workers*/) const { return ""; }
};

class Slurm : public ClusterBed {
 public:
  static void SetUpTestSuite() { bring_up("slurm"); }

 protected:
  std::string block(int n_workers, const std::string& more = "",
                    const std::string& walltime = "") const override;
  // All on one node, they would all be put back into the queue, where Slurm lets them wait 2 min.
  std::string spread_block(int n_workers) const override {
    return block(n_workers, ", job_extra_directives: ['--exclusive']");
  }
  std::vector<Refusal> refusals() const override;
  std::vector<std::string> running_jobs() const override { return jobs("R"); }
  bool queue_is_empty() const override { return jobs("PD,R,CG,CF").empty(); }
  std::vector<std::string> query_commands() const override {
    return {"squeue", "sacct", "scontrol"};
  }
  std::string cancel_line(const std::string& job) const override { return "scancel " + job; }
  std::string requeue_line(const std::string& job) const override {
    return "scontrol requeue " + job;
  }
  void hurry(const std::string& job) const override {
    sh("scontrol update jobid=" + job + " StartTime=now");
  }
  std::function<void()> take_a_node_down(const std::filesystem::path& out) const override;
  std::string short_lived_block(int n_workers) const override;
  // Ids of our jobs in a state.
  static std::vector<std::string> jobs(const std::string& state);
};

class Sge : public ClusterBed {
 public:
  static void SetUpTestSuite() { bring_up("sge"); }

 protected:
  std::string block(int n_workers, const std::string& more = "",
                    const std::string& walltime = "") const override;
  std::vector<Refusal> refusals() const override;
  std::vector<std::string> running_jobs() const override;
  bool queue_is_empty() const override { return sh("qstat -u '*'").empty(); }
  std::vector<std::string> query_commands() const override { return {"qstat", "qacct"}; }
  std::string cancel_line(const std::string& job) const override { return "qdel " + job; }
  std::string requeue_line(const std::string& job) const override { return "qmod -rj " + job; }
  std::function<void()> take_a_node_down(const std::filesystem::path& out) const override;
  std::string short_lived_block(int n_workers) const override;
  std::string stillborn_block(int n_workers) const override;
};

class Oar : public ClusterBed {
 public:
  static void SetUpTestSuite() { bring_up("oar"); }

 protected:
  std::string block(int n_workers, const std::string& more = "",
                    const std::string& walltime = "") const override;
  std::vector<Refusal> refusals() const override;
  std::vector<std::string> running_jobs() const override;
  bool queue_is_empty() const override;
  std::vector<std::string> query_commands() const override { return {"oarstat"}; }
  std::string cancel_line(const std::string& job) const override { return "oardel " + job; }
  std::function<void()> take_a_node_down(const std::filesystem::path& out) const override;
  std::string short_lived_block(int n_workers) const override;
  std::string stillborn_block(int n_workers) const override;
};

class HTCondor : public ClusterBed {
 public:
  static void SetUpTestSuite() { bring_up("htcondor"); }

 protected:
  std::string block(int n_workers, const std::string& more = "",
                    const std::string& walltime = "") const override;
  std::vector<Refusal> refusals() const override;
  std::vector<std::string> running_jobs() const override;
  bool queue_is_empty() const override;
  std::string cancel_line(const std::string& job) const override {
    return (bed_ / "as-user").string() + " condor_rm " + job;
  }
  std::vector<std::string> query_commands() const override {
    return {"condor_q", "condor_history"};
  }
  std::string prologue_block(int n_workers, const std::string& line) const override;
  std::string requeue_line(const std::string& job) const override {
    return (bed_ / "as-user").string() + " condor_vacate_job " + job;
  }
  std::function<void()> take_a_node_down(const std::filesystem::path& out) const override;
  std::string short_lived_block(int n_workers) const override;
};

class Ssh : public ClusterBed {
 public:
  static void SetUpTestSuite() { bring_up("ssh"); }

 protected:
  std::string block(int n_workers, const std::string& more = "",
                    const std::string& walltime = "") const override;
  std::vector<Refusal> refusals() const override;
  std::function<void()> take_a_node_down(const std::filesystem::path& out) const override;
  std::vector<std::string> query_commands() const override { return {"ssh"}; }
  void provoke_a_query(const std::filesystem::path& out) const override;
  std::string prologue_block(int n_workers, const std::string& line) const override;
  std::string short_lived_block(int) const override { return ""; }
};

// PBS, Moab and LSF as strict fakes (tests/beds/fake): they read the script as the real ones do,
// run it for real, and misbehave on request.
class Fake : public ClusterBed {
 protected:
  explicit Fake(std::string env) : env_(std::move(env)) {}
  std::string block(int n_workers, const std::string& more = "",
                    const std::string& walltime = "") const override;
  std::vector<std::string> running_jobs() const override;
  bool queue_is_empty() const override;
  std::function<void()> take_a_node_down(const std::filesystem::path& out) const override;
  std::string short_lived_block(int n_workers) const override;
  std::string stillborn_block(int n_workers) const override;
  // How the scheduler behaves from now on.
  static void conduct(const Json& how);
  void TearDown() override;

 private:
  std::vector<std::string> tasks(const std::string& states) const;
  const std::string env_;
};

class FakePbs : public Fake {
 public:
  FakePbs() : Fake("pbs") {}
  static void SetUpTestSuite() { bring_up("fake_pbs"); }

 protected:
  std::vector<Refusal> refusals() const override;
  std::vector<std::string> query_commands() const override { return {"qstat"}; }
  std::string cancel_line(const std::string& job) const override { return "qdel " + job; }
  std::string requeue_line(const std::string& job) const override { return "qrerun " + job; }
};

class FakeMoab : public Fake {
 public:
  FakeMoab() : Fake("moab") {}
  static void SetUpTestSuite() { bring_up("fake_moab"); }

 protected:
  std::vector<Refusal> refusals() const override;
  std::vector<std::string> query_commands() const override { return {"checkjob"}; }
  std::string cancel_line(const std::string& job) const override { return "canceljob " + job; }
  std::string requeue_line(const std::string& job) const override { return "mjobctl -R " + job; }
};

class FakeLsf : public Fake {
 public:
  FakeLsf() : Fake("lsf") {}
  static void SetUpTestSuite() { bring_up("fake_lsf"); }

 protected:
  std::vector<Refusal> refusals() const override;
  std::vector<std::string> query_commands() const override { return {"bjobs"}; }
  std::string cancel_line(const std::string& job) const override { return "bkill " + job; }
  std::string requeue_line(const std::string& job) const override { return "brequeue " + job; }
};

// A real control plane; a script of the bed plays the kubelets.
class Kube : public ClusterBed {
 public:
  static void SetUpTestSuite() { bring_up("kube"); }

 protected:
  std::string block(int n_workers, const std::string& more = "",
                    const std::string& walltime = "") const override;
  std::vector<Refusal> refusals() const override;
  std::vector<std::string> running_jobs() const override;
  bool queue_is_empty() const override;
  std::string cancel_line(const std::string& job) const override {
    return "kubectl delete --wait=false pod " + job;
  }
  std::vector<std::string> query_commands() const override { return {"kubectl"}; }
  std::string query_pattern() const override { return "*get*"; }
  std::string prologue_block(int n_workers, const std::string& line) const override;
  std::function<void()> take_a_node_down(const std::filesystem::path& out) const override;
  std::string short_lived_block(int) const override { return ""; }
};

}  // namespace tutti::parallel
