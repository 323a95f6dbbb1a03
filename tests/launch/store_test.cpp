#include "tutti/launch/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <atomic>
#include <thread>

#include "tutti/core/error.h"
#include "tutti/core/random.h"
#include "tutti/launch/auth.h"
#include "tutti/launch/handshake.h"

namespace tutti::launch {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using namespace std::chrono_literals;

class StoreTest : public testing::Test {
 protected:
  Address address() const { return {"127.0.0.1", server_.port()}; }
  StoreServer server_{{.host = "127.0.0.1", .secrets = {"secret"}}};
};

TEST_F(StoreTest, SetGetAddCompareRemoveList) {
  Store store(address(), "secret", 20s);
  EXPECT_FALSE(store.get("a").has_value());
  store.set("a/1", std::string("x\0y", 3));
  store.set("a/2", "");
  EXPECT_EQ(store.get("a/1"), std::string("x\0y", 3));
  EXPECT_THAT(store.list("a/"), ElementsAre(Pair("a/1", std::string("x\0y", 3)), Pair("a/2", "")));
  EXPECT_EQ(store.add("n", 5), 5);
  EXPECT_EQ(store.add("n", -7), -2);
  EXPECT_THROW(store.add("a/1", 1), CommError);
  EXPECT_EQ(store.compare_set("first", "", "me"), "me");
  EXPECT_EQ(store.compare_set("first", "", "you"), "me") << "the first wins";
  EXPECT_EQ(store.compare_set("first", "me", "you"), "you");
  EXPECT_TRUE(store.remove("a/1"));
  EXPECT_FALSE(store.remove("a/1"));
}

TEST_F(StoreTest, WaitReturnsWhenSomebodySets) {
  std::thread setter([&] {
    Store store(address(), "secret", 20s);
    store.set("key", "value");
  });
  Store store(address(), "secret", 20s);
  EXPECT_EQ(store.wait("key", 20s), "value");
  setter.join();
}

TEST_F(StoreTest, TimedOutWaitLeavesTheConnectionInStep) {
  Store store(address(), "secret", 20s);
  for (int i = 0; i < 3; ++i) {
    try {
      store.wait("never", 10ms);
      FAIL();
    } catch (const CommError& error) {
      EXPECT_THAT(error.what(), HasSubstr("'never'"));
    }
    store.set("k", std::to_string(i));
    EXPECT_EQ(store.get("k"), std::to_string(i));
    EXPECT_FALSE(store.get("zzz").has_value());
  }
}

TEST_F(StoreTest, LeasesRunOutUnlessRenewed) {
  Store store(address(), "secret", 20s);
  store.set("alive", "x", 50ms);
  store.set("kept", "x", 100s);
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (store.get("alive") && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_FALSE(store.get("alive").has_value());
  EXPECT_TRUE(store.get("kept").has_value());
}

TEST_F(StoreTest, BarrierNamesTheMissing) {
  std::vector<std::thread> members;
  for (const int member : {0, 2}) {
    members.emplace_back([&, member] {
      Store store(address(), "secret", 20s);
      try {
        store.barrier("epoch", member, 4, 200ms);
        ADD_FAILURE();
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(), AllOf(HasSubstr("'epoch'"), HasSubstr("1"), HasSubstr("3")));
      }
    });
  }
  for (auto& member : members) member.join();
}

TEST_F(StoreTest, BarrierMayBeUsedAgain) {
  std::atomic<int> passed = 0;
  std::vector<std::thread> members;
  for (int member = 0; member < 3; ++member) {
    members.emplace_back([&, member] {
      Store store(address(), "secret", 20s);
      for (int round = 0; round < 20; ++round) {
        store.barrier("b", member, 3, 20s);
        ++passed;
        store.barrier("c", member, 3, 20s);
        EXPECT_EQ(passed % 3, 0);
        store.barrier("d", member, 3, 20s);
      }
    });
  }
  for (auto& member : members) member.join();
  EXPECT_EQ(passed, 60);
}

TEST_F(StoreTest, WrongSecretIsRefused) {
  try {
    Store store(address(), "wrong", 20s);
    FAIL();
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), HasSubstr("wrong secret"));
  }
}

// Whatever strangers send, honest clients are served.
TEST_F(StoreTest, GarbageIsDroppedAndOthersAreServed) {
  Random random({3});
  for (int round = 0; round < 50; ++round) {
    const UniqueFd fd = connect_tcp(address(), deadline_in(20s));
    std::string garbage(random.below(3000), '\0');
    for (char& c : garbage) c = static_cast<char>(random());
    if (round % 3 == 0) garbage = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    // A frame that claims four gigabytes.
    if (round % 3 == 1) garbage = std::string("\xff\xff\xff\xff\x02Tu1", 8) + garbage;
    ::send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    if (round % 2 == 0) continue;
    Store store(address(), "secret", 20s);
    store.set("k", "v");
    EXPECT_EQ(store.get("k"), "v");
  }
}

TEST_F(StoreTest, SilentAndSlowConnectionsHoldNobodyUp) {
  // More than are kept: the oldest strangers are dropped, and every client still gets in.
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 300; ++i) {
    silent.push_back(connect_tcp(address(), deadline_in(20s)));
    if (i % 2 == 0) ::send(silent.back().get(), "\x05", 1, MSG_NOSIGNAL);  // the start of a length
  }
  Store store(address(), "secret", 20s);
  store.set("k", "v");
  EXPECT_EQ(store.get("k"), "v");
  char byte = 0;
  int dropped = 0;
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (dropped == 0 && std::chrono::steady_clock::now() < deadline) {
    // After the challenge has been read, a dropped connection reads as ended.
    while (::recv(silent.front().get(), &byte, 1, MSG_DONTWAIT) > 0) {
    }
    if (::recv(silent.front().get(), &byte, 1, MSG_DONTWAIT) == 0) ++dropped;
  }
  EXPECT_EQ(dropped, 1);
}

TEST_F(StoreTest, ProofWithAnotherSecretIsRefused) {
  Channel stranger(connect_tcp(address(), deadline_in(20s)), kMaxHello);
  const Frame challenge = receive_one(stranger, deadline_in(20s), "server");
  const std::string proof = hmac_sha256("not the secret", challenge.body);
  send_one(stranger, {2, 0, Builder().text("nonce").text(proof).text("store").text("").take()},
           deadline_in(20s), "server");
  EXPECT_EQ(receive_one(stranger, deadline_in(20s), "server").type, 4) << "refused";
}

TEST_F(StoreTest, LostServerIsAClearError) {
  auto server =
      std::make_unique<StoreServer>(StoreServer::Options{.host = "127.0.0.1", .secrets = {"s"}});
  Store store({"127.0.0.1", server->port()}, "s", 20s);
  store.set("a", "b");
  server.reset();
  EXPECT_THROW(store.get("a"), CommError);
}

TEST(Auth, KnownVectors) {
  // RFC 4231, cases 2 and 6: short and longer than a block.
  EXPECT_EQ(to_hex(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(to_hex(hmac_sha256(std::string(131, '\xaa'),
                               "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Auth, SecretFileMustBePrivate) {
  TempFolder folder;
  const auto path = folder.path() / "secret";
  write_file_atomic(path, " s3cret\n", 0600);
  EXPECT_EQ(read_secret_file(path), "s3cret");
  ::chmod(path.c_str(), 0644);
  EXPECT_THROW(read_secret_file(path), ConfigError);
  write_file_atomic(path, "\n", 0600);
  EXPECT_THROW(read_secret_file(path), ConfigError);
  EXPECT_THROW(read_secret_file(folder.path() / "none"), IoError);
}

}  // namespace
}  // namespace tutti::launch
