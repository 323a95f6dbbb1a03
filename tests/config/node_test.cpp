#include "tutti/config/node.h"

#include <gtest/gtest.h>

#include "tutti/config/load.h"
#include "tutti/core/error.h"

namespace tutti::config {
namespace {

TEST(Node, ReadsTypesAndKeepsRawText) {
  const Node node =
      parse_yaml("a: 12:00:00\nb: 1e-3\nc: [1, 2]\nd: 'yes'\ne: yes\nf: 32GB\n", "t.yaml");
  EXPECT_EQ(node["a"].raw(), "12:00:00");
  EXPECT_DOUBLE_EQ(node["a"].as<Duration>().seconds, 43200);
  EXPECT_DOUBLE_EQ(node["b"].as<double>(), 1e-3);
  EXPECT_EQ(node["c"].as<std::vector<int>>(), (std::vector<int>{1, 2}));
  EXPECT_EQ(node["e"].as<std::string>(), "yes");
  EXPECT_TRUE(node["e"].as<bool>());
  EXPECT_THROW(node["d"].as<bool>(), ConfigError);
  EXPECT_EQ(node["f"].as<Bytes>().count, 32000000000U);
}

TEST(Node, ErrorSaysWhereKeyGotExpected) {
  const Node node = parse_yaml("trainer:\n  devices: many\n", "conf/t.yaml");
  try {
    node["trainer"]["devices"].as<int>();
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_STREQ(e.what(), "conf/t.yaml:2:12: trainer.devices: got 'many', expected an integer");
  }
}

TEST(Node, YamlAndBackIsTheSameTree) {
  const std::string text =
      "a: -1\nb: \"-1\"\nc: [-0.5, '- x', '---', 12:00:00, 'yes', no]\nd: {}\ne: '${x}'\n";
  const Node node = parse_yaml(text, "t.yaml");
  EXPECT_EQ(to_json(parse_yaml(to_yaml(node), "again.yaml")).dump(), to_json(node).dump());
  EXPECT_EQ(to_json(node)["a"], -1);
}

}  // namespace
}  // namespace tutti::config
