#include "tutti/parallel/run/start_ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tutti::parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(StartLedger, ABadNodeIsAShareOfItsOwnStarts) {
  StartLedger ledger;
  for (int n = 0; n < 9; ++n) ledger.ready("good" + std::to_string(n));
  ledger.failed({.node = "bad"});
  EXPECT_THAT(ledger.bad_nodes(), IsEmpty()) << "once is chance";
  ledger.failed({.node = "bad"});
  EXPECT_THAT(ledger.bad_nodes(), ElementsAre("bad"));
  EXPECT_EQ(ledger.failures_in_a_row(), 2);
  EXPECT_EQ(ledger.unexplained_failures(), 0) << "no reason to wait before the next start";
  EXPECT_EQ(ledger.story(), "2 starts of workers failed: bad 2 of 2");
}

TEST(StartLedger, ThreeBadNodesOfTenAreAllNamed) {
  StartLedger ledger;
  for (int n = 0; n < 7; ++n) ledger.ready("good" + std::to_string(n));
  for (int round = 0; round < 2; ++round)
    for (const char* node : {"a", "b", "c"}) ledger.failed({.node = node});
  EXPECT_THAT(ledger.bad_nodes(), ElementsAre("a", "b", "c"));
}

TEST(StartLedger, ABrokenSetUpIsNoNodesFault) {
  StartLedger ledger;
  for (int round = 0; round < 3; ++round)
    for (const char* node : {"a", "b", "c", "d"}) ledger.failed({.node = node});
  EXPECT_THAT(ledger.bad_nodes(), IsEmpty());
  EXPECT_EQ(ledger.failures_in_a_row(), 12);
  ledger.ready("a");
  EXPECT_EQ(ledger.failures_in_a_row(), 0);
}

TEST(StartLedger, NeverMoreThanAThirdOfTheNodes) {
  StartLedger ledger;
  for (int n = 0; n < 20; ++n) ledger.ready("good");
  for (int round = 0; round < 2; ++round)
    for (const char* node : {"a", "b"}) ledger.failed({.node = node});
  EXPECT_EQ(ledger.bad_nodes().size(), 1U);
}

}  // namespace
}  // namespace tutti::parallel
