// What Kubernetes has beyond the table of faults: manifests as its schema has them, and pods that
// wait for what is not there.
#include <signal.h>

#include "tests/parallel/cluster/beds.h"
#include "tests/places.h"
#include "tutti/config/load.h"
#include "tutti/parallel/backends/kube.h"

namespace tutti::parallel {
namespace {

using ::testing::HasSubstr;

// Option sets that use everything the backend writes.
const std::vector<std::string> kOptionSets = {
    "{image: a}",
    "{image: 'r/tutti:1', namespace: default, labels: {team: speech}, annotations: {note: x}, "
    "resources: {requests: {cpu: 500m, memory: 1Gi}, limits: {cpu: 1, memory: 2Gi}}, gpu_limit: 2, "
    "env: {A: 1, B: true}, threads_per_worker: 2, node_selector: {disk: ssd}, "
    "tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}], "
    "volumes: [{name: d, persistentVolumeClaim: {claimName: data}}, {name: t, emptyDir: {}}], "
    "volume_mounts: [{name: d, mountPath: /data}, {name: t, mountPath: /scratch}]}",
    "{image: a, worker_command: /opt/tutti, memory_limit: 4Gi, memory_request: 2Gi, cpu_limit: 2, "
    "cpu_request: 1, extra_container_config: {imagePullPolicy: Always, securityContext: "
    "{runAsUser: 1000}}, extra_pod_config: {serviceAccountName: default, priorityClassName: ''}}",
    "{image: a, env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}], "
    "custom_cluster_spec: {spec: {activeDeadlineSeconds: 60, template: {spec: {containers: "
    "[{name: side, image: b}]}}}}}"};

class KubeCluster : public Kube {
 protected:
  // Files with the manifests of all option sets for an API server of that version.
  std::vector<std::string> manifests(KubeVersion version) {
    std::vector<std::string> files;
    WorkerLaunch launch;
    launch.command = {"/opt/tutti/bin/tutti", "worker", "--run", "/shared/run"};
    launch.run_folder = "/shared/run";
    launch.env = {{"TUTTI_SOMETHING", "1"}};
    for (const std::string& yaml : kOptionSets) {
      config::Problems problems;
      const auto settings = parse_kube_options(config::parse_yaml(yaml, "test.yaml"), problems);
      EXPECT_TRUE(problems.empty()) << problems.describe();
      files.push_back((folder_.path() / (std::to_string(files.size()) + ".json")).string());
      write_file_atomic(
          files.back(),
          kube_manifest(settings, launch, "job-" + std::to_string(files.size()), 3, 0, version)
              .dump());
    }
    return files;
  }
  // With the schema of a newer Kubernetes than the bed's.
  CommandResult check_schema(const std::vector<std::string>& files) {
    std::vector<std::string> argv = {TUTTI_PYTHON, in_source("tests/beds/kube/schema.py"),
                                     in_source(".cache/kube/schema")};
    argv.insert(argv.end(), files.begin(), files.end());
    return run_command({.argv = argv, .timeout = std::chrono::minutes(2)});
  }
};

TEST_F(KubeCluster, ManifestsAreAsTheOfficialSchemaHasThem) {
  const auto checked = check_schema(manifests({1, 33}));
  if (checked.exit_code == 77) GTEST_SKIP() << checked.out;
  EXPECT_TRUE(checked.ok()) << checked.out << checked.err;
  EXPECT_THAT(checked.out, HasSubstr("4 manifests"));
  // The check is one: a field that is not there and a number for a text are found.
  const auto wrong = folder_.path() / "wrong.json";
  write_file_atomic(wrong, R"({"apiVersion":"batch/v1","kind":"Job","metadata":{"labels":{"a":1}},)"
                           R"("spec":{"completionsMode":"Indexed"}})");
  const auto refused = check_schema({wrong.string()});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.out, HasSubstr("V1JobSpec has no field completionsMode"));
  EXPECT_THAT(refused.out, HasSubstr("labels.a: got 1, expected a string"));
}

TEST_F(KubeCluster, TheApiServerTakesTheManifestsOfItsVersion) {
  for (const std::string& file : manifests({1, 20})) {
    const auto answer = run_command(
        {.argv = {"kubectl", "create", "--dry-run=server", "--validate=true", "-f", file},
         .timeout = std::chrono::minutes(1)});
    EXPECT_TRUE(answer.ok()) << answer.err << read_file(file);
    EXPECT_THAT(answer.out, HasSubstr("job-"));
  }
  EXPECT_TRUE(queue_is_empty()) << "a dry run creates nothing";
}

TEST_F(KubeCluster, PodsThatCannotPullTheirImageAreReportedInWords) {
  const std::string missing = block(2, ", image: 'registry.invalid/tutti:1'");
  const auto sync = map(missing, folder_.path() / "sync", 10, {"echo", "{}"}, false);
  EXPECT_EQ(sync.exit_code, 6) << sync.err;
  EXPECT_THAT(sync.err, HasSubstr("Back-off pulling image \"registry.invalid/tutti:1\""));
  EXPECT_TRUE(eventually([&] { return queue_is_empty(); }));
  // Without a driver it is told at the submission when it is known so soon, or to whoever asks.
  const auto out = folder_.path() / "async";
  const auto async = map(missing, out, 10, {"echo", "{}"}, true);
  if (async.exit_code == 6) {
    EXPECT_THAT(async.err, HasSubstr("Back-off pulling image"));
    return;
  }
  ASSERT_EQ(async.exit_code, 0) << async.err;
  EXPECT_TRUE(eventually([&] {
    return tutti({"status", out.string()}).out.find("Back-off pulling") != std::string::npos;
  })) << tutti({"status", out.string()}).out;
  EXPECT_EQ(tutti({"cancel", "--now", out.string()}).exit_code, 0);
  EXPECT_TRUE(eventually([&] { return queue_is_empty(); })) << sh("kubectl get jobs,pods");
}

TEST_F(KubeCluster, PodsThatNoNodeCanTakeAreReportedInWords) {
  const auto out = folder_.path() / "out";
  const std::string greedy = block(2, ", resources: {requests: {cpu: 64}}");
  ASSERT_EQ(map(greedy, out, 10, {"echo", "{}"}, true).exit_code, 0);
  EXPECT_TRUE(eventually([&] {
    return tutti({"status", out.string()}).out.find("Insufficient cpu") != std::string::npos;
  })) << tutti({"status", out.string()}).out;
  EXPECT_EQ(tutti({"cancel", out.string()}).exit_code, 0);
  EXPECT_TRUE(eventually([&] { return queue_is_empty(); }));
  // A driver that stays says it too.
  const auto sync = folder_.path() / "sync";
  Process driver =
      Process::start({.argv = tutti_argv({"map", "--config", out.string() + ".yaml", "--items",
                                          "10", "--output_dir", sync.string(), "--", "echo", "{}"}),
                      .cwd = folder_.path(),
                      .stdout_path = folder_.path() / "sync.log"});
  EXPECT_TRUE(eventually([&] {
    return read_file(folder_.path() / "sync.log").find("2 jobs wait: Unschedulable") !=
           std::string::npos;
  })) << read_file(folder_.path() / "sync.log");
  EXPECT_THAT(tutti({"status", sync.string()}).out, HasSubstr("Insufficient cpu"));
  ::kill(driver.pid(), SIGTERM);
  EXPECT_EQ(driver.wait().exit_code, 85);
  EXPECT_TRUE(eventually([&] { return queue_is_empty(); }));
}

}  // namespace
}  // namespace tutti::parallel
