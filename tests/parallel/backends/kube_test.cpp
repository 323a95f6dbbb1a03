#include "tutti/parallel/backends/kube.h"

#include "tests/parallel/backends/support.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"

namespace tutti::parallel {
namespace {

using ::testing::HasSubstr;

KubeSettings kube(const std::string& yaml) {
  config::Problems problems;
  KubeSettings settings = parse_kube_options(config::parse_yaml(yaml, "test.yaml"), problems);
  EXPECT_TRUE(problems.empty()) << problems.describe();
  return settings;
}

TEST(KubeManifest, IsAnIndexedJob) {
  const Json job =
      kube_manifest(kube("{image: 'r/tutti:1', namespace: speech, resources: {limits: "
                         "{nvidia.com/gpu: 1, memory: 8Gi}}, env: {A: 1, B: true}, gpu_limit: 2, "
                         "tolerations: [{key: gpu, operator: Exists}], volumes: [{name: d, "
                         "emptyDir: {}}], volume_mounts: [{name: d, mountPath: /d}]}"),
                    example_launch(), "tutti-1-0", 4, 8);
  EXPECT_EQ(job["apiVersion"], "batch/v1");
  EXPECT_EQ(job["kind"], "Job");
  EXPECT_EQ(job["metadata"]["namespace"], "speech");
  EXPECT_EQ(job["spec"]["completionMode"], "Indexed");
  EXPECT_EQ(job["spec"]["completions"], 4);
  EXPECT_EQ(job["spec"]["parallelism"], 4);
  const Json pod = job["spec"]["template"]["spec"];
  EXPECT_EQ(pod["restartPolicy"], "Never");
  EXPECT_EQ(pod["tolerations"][0]["key"], "gpu");
  const Json container = pod["containers"][0];
  EXPECT_EQ(container["image"], "r/tutti:1");
  EXPECT_EQ(
      container["command"][2],
      "exec /opt/tutti/bin/tutti worker --run /shared/run --id $((8 + JOB_COMPLETION_INDEX))");
  EXPECT_EQ(container["resources"]["limits"]["nvidia.com/gpu"], "2");
  EXPECT_EQ(container["env"][0], (Json{{"name", "A"}, {"value", "1"}})) << "Kubernetes wants text";
  EXPECT_EQ(container["env"][1], (Json{{"name", "B"}, {"value", "true"}}));
}

TEST(KubeManifest, AnOldClusterGetsAJobPerWorker) {
  const Json list = kube_manifest(kube("{image: a, annotations: {who: me}}"), example_launch(), "n",
                                  2, 8, {1, 28});
  EXPECT_EQ(list["kind"], "List");
  ASSERT_EQ(list["items"].size(), 2U);
  const Json second = list["items"][1];
  EXPECT_EQ(second["metadata"]["name"], "n-1");
  EXPECT_EQ(second["spec"]["backoffLimit"], 0);
  EXPECT_FALSE(second["spec"].contains("completionMode"));
  const Json meta = second["spec"]["template"]["metadata"];
  EXPECT_EQ(meta["annotations"], (Json{{"who", "me"}, {"tutti-index", "1"}}));
  EXPECT_EQ(meta["labels"]["tutti-submission"], "n");
  EXPECT_EQ(second["spec"]["template"]["spec"]["containers"][0]["env"].back(),
            (Json{{"name", "JOB_COMPLETION_INDEX"}, {"value", "1"}}));
}

TEST(KubeManifest, AnOwnSpecIsMergedNotPutInPlace) {
  const Json job = kube_manifest(
      kube("{image: a, custom_cluster_spec: {spec: {activeDeadlineSeconds: 60, template: {spec: "
           "{serviceAccountName: me, "
           "containers: [{name: worker, imagePullPolicy: Always}, {name: side, image: b}]}}}}}"),
      example_launch(), "n", 1, 0);
  EXPECT_EQ(job["spec"]["activeDeadlineSeconds"], 60);
  EXPECT_EQ(job["spec"]["completionMode"], "Indexed");
  const Json containers = job["spec"]["template"]["spec"]["containers"];
  ASSERT_EQ(containers.size(), 2U);
  EXPECT_EQ(containers[0]["imagePullPolicy"], "Always");
  EXPECT_EQ(containers[0]["image"], "a");
  EXPECT_EQ(containers[1]["name"], "side");
}

TEST(KubeOptions, MistakesAreNamed) {
  EXPECT_THAT(check("kube", "{namespace: a}").problems, HasSubstr("key 'image' is missing"));
  EXPECT_THAT(check("kube", "{image: a, resources: {limit: {cpu: 1}}}").problems,
              HasSubstr("did you mean 'limits'?"));
  EXPECT_THAT(check("kube", "{image: a, name: Not_A_Name}").problems, HasSubstr("lower case"));
  EXPECT_THAT(check("kube", "{image: a, walltime: 1h}").problems, HasSubstr("batch schedulers"));
  EXPECT_THAT(check("kube", "{image: a, custom_cluster_spec: {kind: DaskCluster}}").problems,
              HasSubstr("expected a Job"));
  EXPECT_THAT(check("kube", "{image: a}").warnings, HasSubstr("cannot see the run folder"));
  EXPECT_THAT(check("kube", "{image: a, idle_timeout: 5}").warnings, HasSubstr("no effect"));
}

std::string pod(const std::string& index, const std::string& created, const std::string& status) {
  return R"({"metadata":{"annotations":{"batch.kubernetes.io/job-completion-index":")" + index +
         R"("},"creationTimestamp":")" + created + R"("},"status":)" + status + "}";
}

TEST(KubeAnswers, ReasonsAreInWords) {
  const auto states = parse_kube_pods(
      "{\"items\":[" +
      pod("0", "1",
          R"({"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable","message":"0/3 nodes: Insufficient cpu."}]})") +
      "," +
      pod("1", "1",
          R"({"phase":"Pending","containerStatuses":[{"state":{"waiting":{"reason":"ImagePullBackOff","message":"Back-off pulling image x"}}}]})") +
      "," + pod("2", "1", R"({"phase":"Running"},"spec":{"nodeName":"node7"})") + "," +
      pod("3", "1",
          R"({"phase":"Failed","containerStatuses":[{"state":{"terminated":{"exitCode":137,"reason":"OOMKilled"}}}]})") +
      "," + pod("4", "1", R"({"phase":"Failed","reason":"Evicted","message":"disk"})") + "," +
      pod("4", "2", R"({"phase":"Succeeded"})") + ",{\"status\":{}}]}");
  EXPECT_EQ(states.at(0).reason, "Unschedulable: 0/3 nodes: Insufficient cpu.");
  EXPECT_EQ(states.at(0).phase, JobPhase::kPending);
  EXPECT_EQ(states.at(1).phase, JobPhase::kFailed);
  EXPECT_THAT(states.at(1).reason, HasSubstr("Back-off pulling image x"));
  EXPECT_EQ(states.at(2).phase, JobPhase::kRunning);
  EXPECT_EQ(states.at(2).node, "node7") << "what the scheduler can be told to avoid";
  EXPECT_THAT(states.at(3).reason, HasSubstr("OOMKilled"));
  EXPECT_EQ(states.at(4).phase, JobPhase::kEnded) << "the newest pod of an index counts";
  EXPECT_EQ(states.size(), 5U);
  EXPECT_THROW(parse_kube_pods("error"), DataError);
}

TEST(KubeAnswers, VersionsAreReadWithProvidersAdditions) {
  const auto version = parse_kube_version(R"({"major":"1","minor":"28+","gitVersion":"v1.28"})");
  EXPECT_EQ(version.minor, 28);
  EXPECT_FALSE(version.has_indexed_jobs());
  EXPECT_TRUE(parse_kube_version(R"({"major":"1","minor":"29"})").has_indexed_jobs());
  EXPECT_TRUE(parse_kube_version(R"({"major":"2","minor":"0"})").has_indexed_jobs());
  EXPECT_THROW(parse_kube_version("Unauthorized"), DataError);
}

TEST(KubeBackend, AnOldClustersJobsAreFoundAndDeletedOneByOne) {
  TempFolder folder;
  PlayedScheduler kubectl([](const Command& command) {
    if (command.argv[2] == "--raw") return says(R"({"major":"1","minor":"20"})");
    if (command.argv[1] == "get")
      return says(R"({"items":[{"metadata":{"annotations":{"tutti-index":"1"}},)"
                  R"("status":{"phase":"Running"}}]})");
    return says("job.batch/x created\n");
  });
  ParallelSettings settings;
  settings.options = config::parse_yaml("{image: a}", "t");
  WorkerLaunch launch = example_launch();
  launch.run_folder = folder.path();
  const auto backend = make_kube(settings, launch, kubectl);
  const auto jobs = backend->submit(2);
  EXPECT_EQ(backend->poll().at(1).phase, JobPhase::kRunning);
  backend->cancel({jobs[1].job_id});
  const std::string name = jobs[1].job_id.substr(0, jobs[1].job_id.find('/'));
  EXPECT_THAT(kubectl.asked.back(), HasSubstr("kubectl delete job " + name + "-1 "));
}

TEST(KubeBackend, SubmitsFollowsAndDeletes) {
  TempFolder folder;
  PlayedScheduler kubectl([](const Command& command) {
    if (command.argv[2] == "--raw") return refuses("Forbidden");  // then it is taken for a new one
    if (command.argv[1] == "get")
      return says("{\"items\":[" + pod("1", "1", R"({"phase":"Running"})") + "]}");
    return says("job.batch/x created\n");
  });
  ParallelSettings settings;
  settings.options = config::parse_yaml("{image: a}", "t");
  WorkerLaunch launch = example_launch();
  launch.run_folder = folder.path();
  const auto backend = make_kube(settings, launch, kubectl);
  const auto jobs = backend->submit(2);
  EXPECT_THAT(jobs.at(1).worker_ids, ::testing::ElementsAre(1));
  const auto states = backend->poll();
  EXPECT_EQ(states.at(0).phase, JobPhase::kPending);
  EXPECT_EQ(states.at(1).phase, JobPhase::kRunning);
  backend->cancel();
  EXPECT_THAT(kubectl.asked.back(), HasSubstr("kubectl delete jobs -l tutti-submission=tutti-"));
  PlayedScheduler refusing(
      [](const Command&) { return refuses("error: the server could not find the namespace"); });
  EXPECT_THROW(make_kube(settings, launch, refusing)->submit(1), SchedulerError);
}

}  // namespace
}  // namespace tutti::parallel
