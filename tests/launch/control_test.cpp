#include "tutti/launch/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>

#include "tutti/core/error.h"
#include "tutti/core/file.h"

namespace tutti::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace std::chrono_literals;

RankContext context(int rank, int world_size) {
  RankContext context;
  context.rank = context.local_rank = rank;
  context.world_size = context.local_world_size = world_size;
  context.host = "host" + std::to_string(rank);
  context.found_by = "test";
  return context;
}

// Runs `body` as every rank of a world, one thread each; returns what each threw ("" for nothing).
// A rank that throws says its last words only if the body does.
std::vector<std::string> run_world(int world_size, ControlOptions options,
                                   const std::function<void(ControlPlane&)>& body) {
  TempFolder folder;
  options.run_folder = folder.path();
  if (options.join_timeout == Timeout(600)) options.join_timeout = Timeout(15);
  std::vector<std::string> errors(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        auto control = ControlPlane::join(context(rank, world_size), options);
        body(*control);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

void expect_no_errors(const std::vector<std::string>& errors) {
  for (const auto& error : errors) EXPECT_EQ(error, "");
}

class Worlds : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Worlds, testing::Values(1, 2, 3, 5));

TEST_P(Worlds, GathersEveryBlobInRankOrder) {
  const int n = GetParam();
  expect_no_errors(run_world(n, {}, [&](ControlPlane& control) {
    const int rank = control.rank().rank;
    // Sizes differ, one is empty, one is larger than a socket buffer.
    const std::string mine(rank == 0 ? 0 : rank == 1 ? 5 << 20 : 10, static_cast<char>('a' + rank));
    const auto blobs = control.all_gather(mine);
    ASSERT_EQ(blobs.size(), static_cast<std::size_t>(n));
    EXPECT_EQ(blobs[static_cast<std::size_t>(rank)], mine);
    if (n > 1) {
      EXPECT_EQ(blobs[1], std::string(5 << 20, 'b'));
    }
    EXPECT_EQ(control.broadcast("from " + std::to_string(rank), n - 1),
              "from " + std::to_string(n - 1));
    control.finish();
  }));
}

TEST_P(Worlds, AgreesEveryStep) {
  const int n = GetParam();
  expect_no_errors(run_world(n, {}, [&](ControlPlane& control) {
    const int rank = control.rank().rank;
    for (int step = 0; step < 200; ++step) {
      const auto reports = control.agree({.step = step, .weight = rank + 0.5, .flags = kHasData});
      ASSERT_EQ(reports.size(), static_cast<std::size_t>(n));
      for (int r = 0; r < n; ++r) {
        ASSERT_EQ(reports[r].step, step);
        ASSERT_EQ(reports[r].weight, r + 0.5);
      }
    }
    control.finish();
  }));
}

TEST(Control, TableNamesEveryRank) {
  expect_no_errors(run_world(2, {.device = "cpu"}, [](ControlPlane& control) {
    EXPECT_THAT(control.startup_table(),
                AllOf(HasSubstr("host0"), HasSubstr("host1"), HasSubstr("cpu"),
                      HasSubstr("found by"), HasSubstr("test")));
    control.finish();
  }));
}

TEST(Control, DifferentPlansAreNamed) {
  const auto errors = run_world(3, {}, [](ControlPlane& control) {
    control.agree({.step = 7, .plan_hash = control.rank().rank == 2 ? 9u : 8u});
  });
  for (const auto& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("rank 2 (host2)"), HasSubstr("another batch plan")));
  }
}

TEST(Control, LastWordsReachEveryone) {
  const auto errors = run_world(3, {}, [](ControlPlane& control) {
    control.set_phase("step 12");
    if (control.rank().rank == 1) {
      control.last_words("utt_7: file is truncated");
      throw DataError("utt_7: file is truncated");
    }
    control.agree({.step = 12});
  });
  EXPECT_EQ(errors[1], "utt_7: file is truncated");
  for (const int rank : {0, 2}) {
    EXPECT_THAT(errors[rank],
                AllOf(HasSubstr("rank 1 (host1"), HasSubstr("utt_7: file is truncated")));
  }
}

TEST(Control, LeavingEarlyIsNamed) {
  const auto errors = run_world(2, {}, [](ControlPlane& control) {
    control.agree({.step = 1});
    if (control.rank().rank == 0) control.agree({.step = 2});
    control.finish();
  });
  for (const auto& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("agree at step 2"), HasSubstr("rank 1 (host1"),
                             HasSubstr("has finished")));
  }
}

TEST(Control, DifferentCallsAreNamed) {
  const auto errors = run_world(2, {}, [](ControlPlane& control) {
    if (control.rank().rank == 0) control.agree({.step = 3});
    control.barrier("save");
    if (control.rank().rank == 1) control.agree({.step = 3});
  });
  for (const auto& error : errors) {
    EXPECT_THAT(error,
                AllOf(HasSubstr("come apart"), HasSubstr("agree at step 3"), HasSubstr("'save'")));
  }
}

TEST(Control, TimeoutNamesTheLateRankAndItsPhase) {
  std::atomic<bool> over = false;
  const auto errors =
      run_world(2, {.timeout = 2s, .heartbeat_interval = 50ms}, [&](ControlPlane& control) {
        if (control.rank().rank == 1) {
          control.set_phase("decoding 3/900");
          while (!over) std::this_thread::yield();
          return;
        }
        try {
          control.barrier("epoch end");
        } catch (...) {
          over = true;
          throw;
        }
      });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 1 (host1"), HasSubstr("decoding 3/900"),
                               HasSubstr("epoch end")));
}

TEST(Control, ProgressExtendsTheTimeout) {
  expect_no_errors(
      run_world(2, {.timeout = 2s, .heartbeat_interval = 20ms}, [&](ControlPlane& control) {
        if (control.rank().rank == 1) {
          const auto until = std::chrono::steady_clock::now() + 5s;
          for (int i = 0; std::chrono::steady_clock::now() < until; ++i) {
            control.set_phase("validating " + std::to_string(i));
            std::this_thread::sleep_for(5ms);
          }
        }
        control.barrier();
        control.finish();
      }));
}

TEST(Control, MissingRankIsNamedWhenJoining) {
  TempFolder folder;
  try {
    ControlPlane::join(context(0, 3), {.run_folder = folder.path(), .join_timeout = 3s});
    FAIL() << "joined alone";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("1 of 3 ranks"), HasSubstr("missing: 1, 2")));
  }
}

TEST(Control, SecondProcessWithTheSameRankIsRefused) {
  std::atomic<bool> refused = false;
  TempFolder folder;
  const ControlOptions options{.run_folder = folder.path()};
  std::thread zero([&] {
    auto control = ControlPlane::join(context(0, 3), options);
    control->finish();
  });
  std::vector<std::thread> twins;
  std::atomic<int> joined = 0;
  for (int i = 0; i < 2; ++i) {
    twins.emplace_back([&] {
      try {
        auto control = ControlPlane::join(context(1, 3), options);
        ++joined;
        control->finish();
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(), HasSubstr("has already joined"));
        refused = true;
      }
    });
  }
  while (!refused) std::this_thread::yield();
  auto control = ControlPlane::join(context(2, 3), options);
  control->finish();
  zero.join();
  for (auto& twin : twins) twin.join();
  EXPECT_EQ(joined, 1);
}

TEST(Control, DifferentConfigsAreNamedAtTheStart) {
  TempFolder folder;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      ControlOptions options{.run_folder = folder.path()};
      options.must_agree = {{"config hash", rank == 1 ? "beef" : "cafe"}};
      try {
        ControlPlane::join(context(rank, 3), options);
        ADD_FAILURE() << "rank " << rank << " joined";
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(),
                    AllOf(HasSubstr("rank 1 (host1"), HasSubstr("config hash"), HasSubstr("beef")));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Control, FailureCallbackRunsOnce) {
  std::atomic<int> calls = 0;
  std::atomic<bool> both_joined = false;
  run_world(2, {}, [&](ControlPlane& control) {
    if (control.rank().rank == 1) {
      while (!both_joined) std::this_thread::yield();
      return;  // dies: no finish()
    }
    both_joined = true;
    control.on_failure([&](const std::string& message) {
      EXPECT_THAT(message, HasSubstr("rank 1 (host1"));
      ++calls;
    });
    while (!control.failure()) std::this_thread::yield();
    EXPECT_THROW(control.barrier(), CommError);
    while (calls == 0) std::this_thread::yield();
  });
  EXPECT_EQ(calls, 1);
}

TEST(Control, StaleAddressFileIsPassedOver) {
  TempFolder folder;
  make_folders(folder.path() / ".rendezvous");
  // A run that was killed left its address; the port answers nobody.
  write_file_atomic(folder.path() / ".rendezvous" / "control-local-r0.json",
                    R"({"tutti_rendezvous":1,"hosts":["127.0.0.1"],"port":1,"nonce":"00"})", 0600);
  std::vector<std::thread> threads;
  for (int rank = 1; rank >= 0; --rank) {
    threads.emplace_back([&, rank] {
      auto control = ControlPlane::join(context(rank, 2), {.run_folder = folder.path()});
      control->finish();
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Control, MeetsAtMasterAddressWithoutAFolder) {
  int port = 0;
  { const UniqueFd probe = listen_tcp("127.0.0.1", 0, port); }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      RankContext self = context(rank, 2);
      self.master_addr = "127.0.0.1";
      self.master_port = port;
      auto control = ControlPlane::join(self, {});
      auto store = control->open_store();
      store->set("from/" + std::to_string(rank), "x");
      store->barrier("all", rank, 2, 20s);
      EXPECT_EQ(store->list("from/").size(), 2U);
      control->finish();
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Control, NoWayToMeetIsAConfigError) {
  EXPECT_THROW(ControlPlane::join(context(0, 2), {}), ConfigError);
}

}  // namespace
}  // namespace tutti::launch
