// The driver's addresses and how workers choose among them.
#include "tutti/parallel/wire/network.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "tutti/core/error.h"
#include "tutti/core/file.h"

namespace tutti::parallel {
namespace {

using ::testing::HasSubstr;

TEST(Network, TheFirstAddressThatAnswersIsTakenAndTheOthersAreNamed) {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(listener.get(), 4), 0);
  socklen_t size = sizeof address;
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
  const std::string good = "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  std::string failures;
  EXPECT_EQ(
      first_reachable({"tcp://127.0.0.1:1", "rubbish", good}, std::chrono::seconds(3), failures),
      good);
  EXPECT_THAT(failures, HasSubstr("tcp://127.0.0.1:1: Connection refused"));
  EXPECT_THAT(failures, HasSubstr("rubbish: not an address"));
  EXPECT_EQ(first_reachable({"tcp://127.0.0.1:1"}, std::chrono::seconds(3), failures), "");
}

TEST(Network, AnUnknownInterfaceIsAConfigErrorThatListsTheOthers) {
  try {
    addresses_of_interface("nosuchif0");
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("lo"));
  }
  EXPECT_EQ(addresses_of_interface("lo"), std::vector<std::string>{"127.0.0.1"});
  EXPECT_FALSE(addresses_of_interface("").empty());
}

}  // namespace
}  // namespace tutti::parallel
