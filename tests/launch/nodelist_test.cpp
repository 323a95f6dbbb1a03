#include "tutti/launch/nodelist.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/core/error.h"
#include "tutti/core/random.h"

namespace tutti::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Nodelist, ExpandsWhatSlurmWrites) {
  EXPECT_THAT(expand_nodelist("node1"), ElementsAre("node1"));
  EXPECT_THAT(expand_nodelist("a[1],b[2-3]"), ElementsAre("a1", "b2", "b3"));
  EXPECT_THAT(expand_nodelist("n[08-11]"), ElementsAre("n08", "n09", "n10", "n11"));
  EXPECT_THAT(expand_nodelist("n[8-11]"), ElementsAre("n8", "n9", "n10", "n11"));
  EXPECT_THAT(expand_nodelist("rack[0-1]node[00-01,7],login"),
              ElementsAre("rack0node00", "rack0node01", "rack0node7", "rack1node00", "rack1node01",
                          "rack1node7", "login"));
  EXPECT_THAT(expand_nodelist("n[1-2]-ib.cluster.org"),
              ElementsAre("n1-ib.cluster.org", "n2-ib.cluster.org"));
  EXPECT_THAT(expand_nodelist("gpu-a-[003]"), ElementsAre("gpu-a-003"));
  EXPECT_THAT(expand_nodelist("b,a"), ElementsAre("b", "a"))
      << "order is Slurm's, not the alphabet's";
}

TEST(Nodelist, ExpandsTaskCounts) {
  EXPECT_THAT(expand_task_counts("8(x2),4"), ElementsAre(8, 8, 4));
  EXPECT_THAT(expand_task_counts("1"), ElementsAre(1));
  EXPECT_THAT(expand_task_counts("2,1(x3)"), ElementsAre(2, 1, 1, 1));
}

TEST(Nodelist, FaultsSayWhere) {
  for (const char* bad :
       {"", ",", "a,", "a[", "a[1", "a[1-", "a[1-]", "a[]", "a]", "a[2-1]", "a[x]", "a[1,]", "a b",
        "n[0-999999999999]", "n[0-9999]m[0-9999]", "n[11111111111111111111]"}) {
    EXPECT_THROW(expand_nodelist(bad), ConfigError) << bad;
  }
  for (const char* bad : {"", "x", "2(", "2(x", "2(x3", "2(3)", "2,", "2(x99999999999)", "2 3"}) {
    EXPECT_THROW(expand_task_counts(bad), ConfigError) << bad;
  }
  try {
    expand_nodelist("node[3-1]");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'node[3-1]': the range 3-1 runs backwards at position 9"));
  }
}

// Builds lists together with what they must expand to.
TEST(Nodelist, RandomListsExpandToWhatTheyWereBuiltFrom) {
  Random random({42});
  for (int round = 0; round < 2000; ++round) {
    std::string list;
    std::vector<std::string> expected;
    const auto num_items = 1 + random.below(4);
    for (std::uint64_t item = 0; item < num_items; ++item) {
      if (item > 0) list += ',';
      std::vector<std::string> names = {""};
      const auto num_parts = 1 + random.below(4);
      for (std::uint64_t part = 0; part < num_parts; ++part) {
        const std::string word(1 + random.below(3), static_cast<char>('a' + random.below(26)));
        list += word;
        for (auto& name : names) name += word;
        if (random.below(2) == 0) continue;
        std::vector<std::string> group;
        list += '[';
        const auto num_ranges = 1 + random.below(3);
        for (std::uint64_t range = 0; range < num_ranges; ++range) {
          const auto width = 1 + random.below(4);
          const auto first = random.below(20);
          const auto last = first + random.below(5);
          const auto pad = [&](std::uint64_t n) {
            std::string text = std::to_string(n);
            while (text.size() < width) text.insert(0, "0");
            return text;
          };
          // Slurm's width is that of the range's first number.
          if (range > 0) list += ',';
          list += pad(first);
          if (last > first) list += "-" + pad(last);
          const auto shown = pad(first).size();
          for (auto n = first; n <= last; ++n) {
            std::string text = std::to_string(n);
            while (text.size() < shown) text.insert(0, "0");
            group.push_back(text);
          }
        }
        list += ']';
        std::vector<std::string> product;
        for (const auto& name : names) {
          for (const auto& number : group) product.push_back(name + number);
        }
        names = product;
      }
      expected.insert(expected.end(), names.begin(), names.end());
    }
    ASSERT_EQ(expand_nodelist(list), expected) << list;
  }
}

TEST(Nodelist, GarbageNeverDoesMoreThanThrow) {
  Random random({43});
  const std::string alphabet = "ab[]-,0123()x ";
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (auto n = random.below(16); n > 0; --n) text += alphabet[random.below(alphabet.size())];
    try {
      for (const auto& host : expand_nodelist(text)) ASSERT_FALSE(host.empty()) << text;
    } catch (const ConfigError&) {
    }
    try {
      expand_task_counts(text);
    } catch (const ConfigError&) {
    }
  }
}

}  // namespace
}  // namespace tutti::launch
