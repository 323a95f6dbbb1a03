// Schedulers that lag, lie, lose jobs and preempt: the strict fakes of tests/beds/fake.
#include "tests/parallel/cluster/beds.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

using ::testing::HasSubstr;

template <class Bed>
class Misbehaving : public Bed {
 protected:
  // Both modes under bad conduct give the bytes of a local run, and no item is blamed.
  void expect_same_under(const Json& how, int count) {
    const std::vector<std::string> command = {"sh", "-c", "sleep 0.05; echo {}"};
    const std::string expected = this->local_results(count, command);
    for (const bool async : {false, true}) {
      this->conduct(how);
      const auto out = this->folder_.path() / ("run-" + std::to_string(this->next_run_++));
      const auto run = this->map(this->block(3), out, count, command, async);
      ASSERT_EQ(run.exit_code, 0) << run.err;
      EXPECT_EQ(this->wait_for_results(out), expected) << how.dump();
      EXPECT_EQ(this->worker_logs(out).find("strikes"), std::string::npos);
    }
  }
};
struct FakeNames {
  template <class Bed>
  static std::string GetName(int) {
    const std::string name = testing::internal::GetTypeName<Bed>();
    return name.substr(name.rfind(':') + 1);
  }
};
using Fakes = testing::Types<FakePbs, FakeMoab, FakeLsf>;
TYPED_TEST_SUITE(Misbehaving, Fakes, FakeNames);

TYPED_TEST(Misbehaving, LagOddAnswersAndFailingQueriesAreSurvived) {
  this->expect_same_under({{"lag_s", 3}, {"banner", true}, {"bad_json", true}, {"fail_queries", 2}},
                          100);
}
TYPED_TEST(Misbehaving, PreemptionIsSurvived) {
  this->expect_same_under({{"preempt_s", 2}, {"preempt_times", 2}}, 150);
}
TYPED_TEST(Misbehaving, ALostJobIsReplaced) {
  // It is known to nobody: after some seconds the driver believes it and asks for another.
  this->conduct({{"lose", 1}});
  const auto run =
      this->map(this->block(1), this->folder_.path() / "out", 20, {"echo", "{}"}, false);
  EXPECT_EQ(run.exit_code, 0) << run.err;
}

TEST_F(FakePbs, KeysTravelInTheEnvironmentWhenAsked) {
  const auto out = folder_.path() / "out";
  const std::string hide = "rm -f " + (out / ".tutti" / "connect.json").string();
  const std::string keys = ", export_keys: true, job_script_prologue: ['" + hide + "']";
  const auto run = map(block(2, keys), out, 20, {"sh", "-c", "echo ${TUTTI_CONNECT:-none}"}, false);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const std::string results = read_file(out / "results.jsonl");
  EXPECT_THAT(results, HasSubstr("\"result\":\"none\"")) << "items must not see the keys";
  EXPECT_EQ(sh("grep -c worker_secret " + (out / "scripts").string() + "/*"), "0");
}

}  // namespace
}  // namespace tutti::parallel
