#include "tests/parallel/cluster/beds.h"

#include <signal.h>

#include "tests/places.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

using Options = std::vector<std::pair<std::string, std::string>>;

// Options of the test (", key: value, ...") come before the bed's own.
std::string options_block(const std::string& head, int n_workers, const Options& own,
                          const std::string& more) {
  std::string text;
  for (const auto& [key, value] : own)
    if (more.find(", " + key + ": ") == std::string::npos) text += ", " + key + ": " + value;
  return "{" + head + ", n_workers: " + std::to_string(n_workers) + ", options: {" +
         (text + more).substr(2) + "}}";
}

// A program that runs `line` and then becomes ours, for backends whose jobs have no prologue.
std::string worker_program(const std::filesystem::path& folder, const std::string& line) {
  const auto path = folder / "worker-program";
  write_file_atomic(path, "#!/bin/sh\n" + line + "\nexec " + in_bin("tutti") + " \"$@\"\n", 0755);
  return path.string();
}

const std::string kWaits = ", job_script_prologue: ['exec sleep 1000']";

std::string or_else(const std::string& text, const std::string& otherwise) {
  return text.empty() ? otherwise : text;
}

}  // namespace

// ---- Slurm

std::string Slurm::block(int n_workers, const std::string& more,
                         const std::string& walltime) const {
  return options_block("env: slurm", n_workers,
                       {{"cores", "1"},
                        {"processes", "1"},
                        {"memory", "200MB"},
                        {"death_timeout", "10"},
                        {"walltime", or_else(walltime, "'00:10:00'")}},
                       more);
}
std::vector<Refusal> Slurm::refusals() const {
  return {{", queue: nowhere", "invalid partition specified: nowhere"},
          {", queue: private, account: me", "account"},
          {", job_mem: 900G", "Memory specification can not be satisfied"}};
}
std::function<void()> Slurm::take_a_node_down(const std::filesystem::path&) const {
  const auto nodes = split_words(sh("squeue -h -t R -o %N"));
  if (nodes.empty()) return {};
  const std::string set = "scontrol update nodename=" + nodes[0] + " state=";
  sh(set + "down reason=test");
  return [this, set] {
    sh(set + "resume");
    sh("scancel -u root");  // what Slurm itself has put back into the queue
    EXPECT_TRUE(eventually([this] { return queue_is_empty(); })) << sh("squeue");
  };
}
// Slurm counts in minutes.
std::string Slurm::short_lived_block(int n_workers) const {
  return block(n_workers, ", drain_margin: 48", "1m");
}
std::vector<std::string> Slurm::jobs(const std::string& state) {
  return split_words(sh("squeue -h -r -t " + state + " -o %i"));
}

// ---- Grid Engine

std::string Sge::block(int n_workers, const std::string& more, const std::string& walltime) const {
  return options_block("env: sge, interface: tutgbr0", n_workers,
                       {{"cores", "1"},
                        {"processes", "1"},
                        {"memory", "200MB"},
                        {"death_timeout", "10"},
                        {"job_script_prologue", "['. " + (bed_ / "env.sh").string() + "']"},
                        {"walltime", or_else(walltime, "30m")}},
                       more);
}
std::vector<Refusal> Sge::refusals() const {
  return {{", queue: nowhere.q", "nowhere.q"},
          {", project: nobody", "nobody"},
          {", memory: 900GB", "the largest has"}};
}
std::vector<std::string> Sge::running_jobs() const {
  return split_words(sh("qstat -s r -u '*' | awk 'NR>2{print $1 \".\" $NF}'"));
}
// The cable is pulled: what runs there runs on, unseen.
std::function<void()> Sge::take_a_node_down(const std::filesystem::path&) const {
  const std::string host =
      sh("qstat -s r -u '*' | sed -n 's/.*all.q@\\(tutg[0-9]*\\).*/\\1/p;T;q'");
  if (host.empty()) return {};
  const std::string link = "ip link set tutgv" + host.substr(4);
  sh(link + " down");
  return [this, link] {
    sh(link + " up");
    EXPECT_TRUE(eventually([] {
      return sh("qstat -f | awk '/^all.q@/ && $6==\"\"' | wc -l") == "3";
    })) << sh("qstat -f");
    sh("qdel -u root");
    EXPECT_TRUE(eventually([this] { return queue_is_empty(); })) << sh("qstat -u '*'");
  };
}
std::string Sge::short_lived_block(int n_workers) const {
  return block(n_workers, ", drain_margin: 18", "'00:00:30'");
}
std::string Sge::stillborn_block(int n_workers) const {
  return block(n_workers, kWaits, "'00:00:05'");
}

// ---- OAR

std::string Oar::block(int n_workers, const std::string& more, const std::string& walltime) const {
  return options_block("env: oar", n_workers,
                       {{"cores", "1"},
                        {"processes", "1"},
                        {"memory", "200MB"},
                        {"memory_per_core_property_name", "mem_core"},
                        {"resource_spec", "'/nodes=1/resource_id=1'"},
                        {"death_timeout", "10"},
                        {"walltime", or_else(walltime, "'0:10:0'")}},
                       more);
}
std::vector<Refusal> Oar::refusals() const {
  return {{", queue: nowhere", "nowhere"},
          {", resource_spec: '/nodes=1/resource_id=99'", "not enough resources"},
          {", memory: 900GB", "not enough resources"}};
}
std::vector<std::string> Oar::running_jobs() const {
  return split_words(sh("oarstat | awk '$1 ~ /^[0-9]+$/ && / R /{print $1}'"));
}
bool Oar::queue_is_empty() const { return sh("oarstat | awk '$1 ~ /^[0-9]+$/{print $1}'").empty(); }
std::function<void()> Oar::take_a_node_down(const std::filesystem::path&) const {
  const auto jobs = running_jobs();
  if (jobs.empty()) return {};
  const std::string node =
      sh("oarstat -f -j " + jobs[0] + " | sed -n 's/.*assigned_hostnames *= *//p' | cut -d+ -f1");
  if (node.empty()) return {};
  sh("oarnodesetting -h " + node + " -s Absent -n; oardel " + jobs[0]);
  return [node] {
    sh("oarnodesetting -h " + node + " -s Alive -n");
    EXPECT_TRUE(eventually([] { return sh("oarnodes -s | grep -c ': Alive'") == "6"; }));
  };
}
std::string Oar::short_lived_block(int n_workers) const {
  return block(n_workers, ", drain_margin: 18", "'0:0:30'");
}
std::string Oar::stillborn_block(int n_workers) const {
  return block(n_workers, kWaits, "'0:0:5'");
}

// ---- HTCondor, in a Debian 13 chroot; `tutti` runs in there too, as an ordinary user

std::string HTCondor::block(int n_workers, const std::string& more, const std::string&) const {
  return options_block(
      "env: htcondor", n_workers,
      {{"cores", "1"},
       {"processes", "1"},
       {"memory", "200MB"},
       {"disk", "10MB"},
       {"death_timeout", "10"},
       {"job_script_prologue", "['export LD_LIBRARY_PATH=" + (bed_ / "lib").string() + "']"}},
      more);
}
std::vector<Refusal> HTCondor::refusals() const {
  return {{", job_extra_directives: {Universe: nowhere}", "nowhere"},
          {", memory: 900GB", "the largest has"}};
}
std::vector<std::string> HTCondor::running_jobs() const {
  return split_words(
      sh((bed_ / "as-user").string() +
         " condor_q -constraint 'JobStatus == 2' -af ClusterId ProcId | sed 's/ /./'"));
}
bool HTCondor::queue_is_empty() const {
  return sh((bed_ / "as-user").string() + " condor_q -af ClusterId").empty();
}
// The node's daemon and what it had started die at once; the pool's master starts it again.
std::function<void()> HTCondor::take_a_node_down(const std::filesystem::path&) const {
  const auto jobs = running_jobs();
  if (jobs.empty()) return {};
  const std::string host =
      sh((bed_ / "as-user").string() + " condor_q " + jobs[0] + " -af RemoteHost | cut -d@ -f2");
  const auto daemons = processes_with({"condor_startd", "-local-name " + host});
  if (daemons.empty()) return {};
  std::vector<pid_t> tree = {daemons[0]};
  for (std::size_t i = 0; i < tree.size(); ++i)
    for (const auto& child :
         split_words(sh("cat /proc/" + std::to_string(tree[i]) + "/task/*/children 2>/dev/null")))
      tree.push_back(std::stoi(child));
  for (const pid_t pid : tree) ::kill(pid, SIGKILL);
  return [this] {
    // HTCondor keeps the dead node's job until the node answers, or it is told not to.
    EXPECT_TRUE(eventually([this] {
      sh((bed_ / "as-user").string() + " sh -c 'condor_rm -all; condor_rm -all -forcex'");
      return queue_is_empty();
    }));
    EXPECT_TRUE(eventually([this] {
      return sh((bed_ / "as-user").string() + " condor_status -af Name | grep -c '^slot1@'") == "3";
    }));
  };
}
std::string HTCondor::prologue_block(int n_workers, const std::string& line) const {
  return block(n_workers, ", job_script_prologue: ['export LD_LIBRARY_PATH=" +
                              (bed_ / "lib").string() + "', '" + line + "']");
}
// HTCondor has no walltime: workers are told how long they may live.
std::string HTCondor::short_lived_block(int n_workers) const {
  return block(n_workers, ", worker_extra_args: ['--lifetime', 12s, '--lifetime-stagger', 1s]");
}

// ---- ssh

std::string Ssh::block(int n_workers, const std::string& more, const std::string&) const {
  return options_block("env: ssh, interface: tutbr0", n_workers,
                       {{"hosts", "[h1, h2, h3]"},
                        {"worker_options", "{death_timeout: 10}"},
                        {"connect_options", "{config: " + (bed_ / "ssh_config").string() +
                                                ", keepalive_interval: 1}"}},
                       more);
}
std::vector<Refusal> Ssh::refusals() const {
  return {{", hosts: [nosuchhost.invalid], connect_retries: 0", "nosuchhost.invalid"}};
}
// One host loses its power, another its network.
std::function<void()> Ssh::take_a_node_down(const std::filesystem::path&) const {
  sh("kill -9 $(cat " + (bed_ / "run/h2.pid").string() + "); ip link set tutv3 down");
  return [] {
    sh("ip link set tutv3 up");
    bring_up_again();
  };
}

// A connection ends; the next one is the command that may hang.
void Ssh::provoke_a_query(const std::filesystem::path& out) const {
  const auto workers = worker_pids(out);
  ASSERT_FALSE(workers.empty());
  ::kill(workers.front(), SIGKILL);
}
std::string Ssh::prologue_block(int n_workers, const std::string& line) const {
  return block(n_workers, ", remote_program: " + worker_program(folder_.path(), line));
}

// ---- Kubernetes

std::string Kube::block(int n_workers, const std::string& more, const std::string&) const {
  const std::string folder = folder_.path().string();
  return options_block("env: kube", n_workers,
                       {{"image", "local/tutti:1"},
                        {"death_timeout", "10"},
                        {"volumes", "[{name: run, hostPath: {path: " + folder + "}}]"},
                        {"volume_mounts", "[{name: run, mountPath: " + folder + "}]"}},
                       more);
}
std::vector<Refusal> Kube::refusals() const {
  return {{", namespace: nowhere", "namespaces \"nowhere\" not found"},
          {", resources: {requests: {memory: much}}", "quantities must match"},
          {", extra_pod_config: {nodeNmae: node1}", "unknown field \"nodeNmae\""}};
}
std::vector<std::string> Kube::running_jobs() const {
  return split_words(
      sh("kubectl get pods --field-selector=status.phase=Running -o "
         "jsonpath='{.items[*].metadata.name}'"));
}
// Finished Jobs of runs without a driver stay until their time to live is over; pods have ended.
bool Kube::queue_is_empty() const {
  return sh("kubectl get pods --no-headers "
            "--field-selector=status.phase!=Succeeded,status.phase!=Failed 2>/dev/null")
      .empty();
}
std::string Kube::prologue_block(int n_workers, const std::string& line) const {
  return block(n_workers, ", worker_command: " + worker_program(folder_.path(), line));
}
// The node falls silent: its pods are deleted when it is found out.
std::function<void()> Kube::take_a_node_down(const std::filesystem::path&) const {
  const std::string node =
      sh("kubectl get pods --field-selector=status.phase=Running -o "
         "jsonpath='{.items[0].spec.nodeName}'");
  if (node.empty()) return {};
  sh("kill -9 $(cat " + (bed_ / "run" / (node + ".pid")).string() + "); kubectl delete pods " +
     "--wait=false --field-selector=spec.nodeName=" + node);
  return [] { bring_up_again(); };
}

// ---- the fakes

std::string Fake::block(int n_workers, const std::string& more, const std::string& walltime) const {
  return options_block("env: " + env_, n_workers,
                       {{"cores", "1"},
                        {"processes", "1"},
                        {"memory", "200MB"},
                        {"death_timeout", "10"},
                        {"walltime", or_else(walltime, "30m")}},
                       more);
}
std::vector<std::string> Fake::tasks(const std::string& state) const {
  return split_words(sh(TUTTI_PYTHON " '" + in_source("tests/beds/fake/scheduler.py") + "' " +
                        bed_.string() + " tasks " + state));
}
std::vector<std::string> Fake::running_jobs() const { return tasks("running"); }
bool Fake::queue_is_empty() const {
  for (const char* state : {"queued", "running", "cancelled", "requeued", "node_down"})
    if (!tasks(state).empty()) return false;
  return true;
}
std::function<void()> Fake::take_a_node_down(const std::filesystem::path&) const {
  const auto jobs = running_jobs();
  if (jobs.empty()) return {};
  sh(TUTTI_PYTHON " '" + in_source("tests/beds/fake/scheduler.py") + "' " + bed_.string() +
     " node-down '" + jobs[0] + "'");
  return [] {};
}
// LSF counts in minutes.
std::string Fake::short_lived_block(int n_workers) const {
  return env_ == "lsf" ? block(n_workers, ", drain_margin: 48", "1m")
                       : block(n_workers, ", drain_margin: 8", "'00:00:20'");
}
std::string Fake::stillborn_block(int n_workers) const {
  return env_ == "lsf" ? "" : block(n_workers, kWaits, "'00:00:03'");
}
void Fake::conduct(const Json& how) {
  for (const char* counter : {"submitted", "queries", "preempted"})
    std::filesystem::remove(bed_ / counter);
  write_file_atomic(bed_ / "conduct.json", how.dump());
}
void Fake::TearDown() {
  ClusterBed::TearDown();
  if (!IsSkipped()) conduct(Json::object());
}

std::vector<Refusal> FakePbs::refusals() const {
  return {{", queue: nowhere", "Unknown queue"},
          {", account: nobody", "Invalid account"},
          {", resource_spec: 'select=1:ncpus=1:mem=900GB'", "resource limits"}};
}
std::vector<Refusal> FakeMoab::refusals() const {
  return {{", queue: nowhere", "Unknown queue"},
          {", account: nobody", "Invalid account"},
          {", resource_spec: 'select=1:ncpus=1:mem=900GB'", "resource limits"}};
}
std::vector<Refusal> FakeLsf::refusals() const {
  return {{", queue: nowhere", "No such queue"},
          {", project: nobody", "not valid"},
          {", mem: 900GB", "MEMLIMIT"}};
}

}  // namespace tutti::parallel
