#include "tutti/config/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "tutti/core/error.h"
#include "tutti/core/file.h"

namespace tutti::config {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

Node resolved(const std::string& text) { return resolve(parse_yaml(text, "t.yaml")); }

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}
std::string error_of(const std::string& yaml) {
  return error_of([&] { resolved(yaml); });
}

class Files {
 public:
  fs::path write(const std::string& name, const std::string& text) const {
    make_folders((folder_.path() / name).parent_path());
    write_file_atomic(folder_.path() / name, text);
    return folder_.path() / name;
  }
  const fs::path& folder() const { return folder_.path(); }

 private:
  TempFolder folder_;
};

TEST(Yaml, MarksOfKeysAndValues) {
  const Node node = parse_yaml("trainer:\n  devices: 4\n  logger:\n    - name: tb\n", "c.yaml");
  EXPECT_EQ(node["trainer"]["devices"].mark().describe(), "c.yaml:2:12");
  EXPECT_EQ(node["trainer"].key_mark("devices").describe(), "c.yaml:2:3");
  EXPECT_EQ(node.find("trainer.logger.0.name").mark().describe(), "c.yaml:4:13");
  EXPECT_EQ(node.find("trainer.logger.0").key_mark("name").describe(), "c.yaml:4:7");
}

TEST(Yaml, DuplicateKeysAreErrorsAllAtOnce) {
  EXPECT_EQ(error_of("a: 1\nb:\n  c: 1\n  c: 2\na: 3\n"),
            "2 problems\n"
            "t.yaml:4:3: b.c: duplicate key, first written at line 3\n  fix: keep one of the two\n"
            "t.yaml:5:1: a: duplicate key, first written at line 1\n  fix: keep one of the two");
}

TEST(Yaml, SyntaxErrorHasAPlace) {
  EXPECT_THAT(error_of("a: [1, 2\nb: 3\n"), HasSubstr("t.yaml:2:2: not valid YAML: "));
  EXPECT_THAT(error_of("a: 1\n\tb: 2\n"), HasSubstr("t.yaml:2:"));
  EXPECT_THAT(error_of("a: 1\n---\nb: 2\n"), HasSubstr("a second YAML document"));
  EXPECT_THAT(error_of("a: !!python/tuple [1]\n"), HasSubstr("python/tuple' has no meaning here"));
  EXPECT_THAT(error_of("? [1, 2]\n: 3\n"), HasSubstr("a key must be a single value"));
}

TEST(Yaml, SyntaxErrorsSayWhatToDo) {
  EXPECT_THAT(
      error_of("trainer:\n  max_epochs: 3\n   devices: 2\n"),
      HasSubstr("fix: keys of one block begin in the same column: line 2 begins in column 3 "
                "and line 3 in column 4"));
  EXPECT_THAT(error_of("trainer:\n  max_epochs: 3\n\n  # mine\n devices: 2\n"),
              HasSubstr("line 2 begins in column 3 and line 5 in column 2"));
  EXPECT_THAT(error_of("a: [1, 2\nb: 3\n"), HasSubstr("fix: close each [ with ]"));
  EXPECT_THAT(error_of("a: {b: 1\n"), HasSubstr("fix: close each [ with ]"));
  EXPECT_THAT(error_of("a: b: c\n"), HasSubstr("fix: put quotes around a value with a colon"));
  EXPECT_THAT(error_of("a: @b\n"), HasSubstr("fix: put quotes around a value that begins with @"));
  EXPECT_THAT(error_of("a: *b\n"), HasSubstr("fix: write &NAME before the first use of *NAME"));
}

TEST(Yaml, AnchorsAndMerges) {
  const Node node = parse_yaml(
      "base: &base {a: 1, b: 2}\nother: &other {b: 7, c: 3}\n"
      "one:\n  <<: *base\n  b: 5\ntwo:\n  <<: [*base, *other]\n  d: 4\nsame: *base\n",
      "t.yaml");
  EXPECT_EQ(to_json(node["one"]).dump(), R"({"b":5,"a":1})");
  EXPECT_EQ(to_json(node["two"]).dump(), R"({"d":4,"a":1,"b":2,"c":3})");
  EXPECT_EQ(node["same"]["b"].as<int>(), 2);
  EXPECT_THAT(error_of("a: {<<: 3}\n"), HasSubstr("expected a map or a list of maps"));
  EXPECT_THAT(error_of("a: &x [*x]\n"), HasSubstr("inside what it refers to"));
}

TEST(Yaml, ValuesKeepTheirTextAndQuotes) {
  const Node node =
      parse_yaml("a: 12:00:00\nb: 'no'\nc: no\nd: !!str 5\ne: |\n  two\n  lines\nf: ~\n", "t.yaml");
  EXPECT_EQ(node["a"].raw(), "12:00:00");
  EXPECT_TRUE(node["b"].value()->quoted);
  EXPECT_FALSE(node["c"].as<bool>());
  EXPECT_EQ(node["c"].as<std::string>(), "no");
  EXPECT_TRUE(node["d"].value()->quoted);
  EXPECT_EQ(node["e"].raw(), "two\nlines\n");
  EXPECT_TRUE(node["f"].is_null());
}

TEST(Yaml, AliasBombIsRefused) {
  std::string text = "a: &a [x, x, x, x, x, x, x, x, x]\n";
  for (char c = 'b'; c <= 'i'; ++c) {
    const std::string before = "*" + std::string(1, static_cast<char>(c - 1));
    text += std::string(1, c) + ": &" + c + " [";
    for (int i = 0; i < 9; ++i) text += (i ? ", " : "") + before;
    text += "]\n";
  }
  EXPECT_THAT(error_of(text), HasSubstr("aliases expand to more than 1000000 values"));
}

TEST(Yaml, DeepNestingIsRefused) {
  EXPECT_THAT(error_of("a: " + std::string(10000, '[') + std::string(10000, ']')),
              HasSubstr("nested more than 200 levels deep"));
  EXPECT_THAT(error_of(std::string(10000, '[')), HasSubstr("t.yaml:1:"));
  EXPECT_THAT(error_of(std::string(10000, '{')), HasSubstr("t.yaml:1:"));
  std::string dashes;
  for (int i = 0; i < 10000; ++i) dashes += "- ";
  EXPECT_THAT(error_of(dashes + "1\n"), HasSubstr("nested more than 200 levels deep"));
  std::string keys;
  for (int i = 0; i < 3000; ++i) keys += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
  EXPECT_THAT(error_of(keys), HasSubstr("nested more than 200 levels deep"));
}

TEST(Interpolation, ReferencesOfEveryKind) {
  const Node node = resolved(
      "exp: exp/x\nlist: [10, {k: v}]\ndir: ${exp}/tb\nwhole: ${list}\n"
      "index: ${list.0}\nbracket: ${list[1].k}\nbranch: {x: 1, y: '${.x}', z: {up: '${..x}'}}\n"
      "name: list\nnested: ${${name}.0}\nescaped: \\${exp}\nchain: ${dir}/more\nthrough: "
      "${whole.1.k}\n");
  EXPECT_EQ(node["dir"].raw(), "exp/x/tb");
  EXPECT_EQ(to_json(node["whole"]).dump(), R"([10,{"k":"v"}])");
  EXPECT_EQ(node["index"].as<int>(), 10);
  EXPECT_EQ(node["bracket"].raw(), "v");
  EXPECT_EQ(node["branch"]["y"].as<int>(), 1);
  EXPECT_EQ(node["branch"]["z"]["up"].as<int>(), 1);
  EXPECT_EQ(node["nested"].as<int>(), 10);
  EXPECT_EQ(node["escaped"].raw(), "${exp}");
  EXPECT_EQ(node["chain"].raw(), "exp/x/tb/more");
  EXPECT_EQ(node["through"].raw(), "v");
}

TEST(Interpolation, ValueHasTheMarkOfItsUse) {
  const Node node = resolved("num_device: many\ntrainer:\n  devices: ${num_device}\n");
  EXPECT_THAT(error_of([&] { node["trainer"]["devices"].as<int>(); }),
              HasSubstr("t.yaml:3:12: trainer.devices: got 'many'"));
}

TEST(Interpolation, RelativeInsideASharedAnchorMeansEachPlace) {
  const Node node = resolved("a: {x: 1, y: &ref '${.x}'}\nb: {x: 2, y: *ref}\n");
  EXPECT_EQ(node["a"]["y"].as<int>(), 1);
  EXPECT_EQ(node["b"]["y"].as<int>(), 2);
}

TEST(Interpolation, Arithmetic) {
  const Node node = resolved(
      "num_nodes: 2\nnum_device: 8\nworld: ${num_nodes * num_device}\nsum: ${1 + 2 * 3 - 4}\n"
      "paren: ${(num_nodes + 1) * -2}\nfloor: ${7 // 2}\nnegative_floor: ${-7 // 2}\nmod: ${-7 % "
      "4}\n"
      "even: ${num_device / 2}\nodd: ${7 / 2}\nlowest: ${min(num_nodes, num_device, 5)}\n"
      "highest: ${max(num_nodes, 1.5)}\nmixed: r${num_nodes*num_device}_x\nlr: ${1e-3 * 2}\n"
      "deep: {n: 3, square: '${.n * .n}'}\nspelled: ${ ${num_nodes} * 3 }\na-b: 5\ndashed: "
      "${a-b}\n");
  EXPECT_EQ(node["world"].raw(), "16");
  EXPECT_EQ(node["sum"].raw(), "3");
  EXPECT_EQ(node["paren"].raw(), "-6");
  EXPECT_EQ(node["floor"].raw(), "3");
  EXPECT_EQ(node["negative_floor"].raw(), "-4");
  EXPECT_EQ(node["mod"].raw(), "1");
  EXPECT_EQ(node["even"].raw(), "4");
  EXPECT_EQ(node["odd"].raw(), "3.5");
  EXPECT_EQ(node["lowest"].raw(), "2");
  EXPECT_EQ(node["highest"].raw(), "2");
  EXPECT_EQ(node["mixed"].raw(), "r16_x");
  EXPECT_DOUBLE_EQ(node["lr"].as<double>(), 2e-3);
  EXPECT_EQ(node["deep"]["square"].raw(), "9");
  EXPECT_EQ(node["spelled"].raw(), "6");
  EXPECT_EQ(node["dashed"].raw(), "5");
}

TEST(Interpolation, BadArithmeticNamesExpressionAndPlace) {
  EXPECT_EQ(error_of("a: 4\nb: ${a / 0}\n"), "t.yaml:2:4: b: in ${a / 0}: division by zero");
  EXPECT_THAT(error_of("a: two\nb: ${a * 2}\n"),
              HasSubstr("t.yaml:2:4: b: in ${a * 2}: 'a' is 'two', expected a number"));
  EXPECT_THAT(error_of("a: 2\nb: ${a * }\n"), HasSubstr("expected a number or a key at the end"));
  EXPECT_THAT(error_of("a: 2\nb: ${a ** 2}\n"), HasSubstr("expected a number or a key at '* 2'"));
  EXPECT_THAT(error_of("b: ${9223372036854775807 + 1}\n"), HasSubstr("does not fit into 64 bits"));
  EXPECT_THAT(error_of("num_device: 1\nb: ${num_devise * 2}\n"),
              HasSubstr("did you mean 'num_device'?"));
  EXPECT_THAT(error_of("a: ${sum(1, 2)}\n"), HasSubstr("unknown function 'sum'"));
}

TEST(Interpolation, MissingKeyNamesTheChain) {
  EXPECT_EQ(
      error_of("first: ${second}\nsecond: ${third.pahts}/y\nthird: {paths: 1}\n"),
      "t.yaml:2:9: second: in ${third.pahts}: no key 'pahts' under 'third'; needed by first -> "
      "second\n"
      "  fix: did you mean 'paths'?");
  EXPECT_THAT(error_of("a: ${b.5}\nb: [1]\n"),
              HasSubstr("'b' is a list of 1, it has no element '5'"));
  EXPECT_THAT(error_of("a: ${....x}\n"), HasSubstr("more dots than levels above"));
  EXPECT_THAT(error_of("a: ${b\nb: 1\n"), HasSubstr("no closing brace"));
}

TEST(Interpolation, CyclesNameTheChain) {
  EXPECT_EQ(error_of("a: ${b}\nb: x${c}\nc: ${a}\n"),
            "t.yaml:3:4: c: references go in a circle: a -> b -> c -> a\n  fix: give one of them a "
            "value of its own");
  EXPECT_THAT(error_of("a: ${a}\n"), HasSubstr("circle: a -> a"));
  EXPECT_THAT(error_of("a: {b: '${a}'}\n"), HasSubstr("circle: a -> a.b -> a"));
  EXPECT_THAT(error_of("a: ${b.x}\nb: ${a.y}\n"), HasSubstr("circle"));
  EXPECT_THAT(error_of("a: ${a.x}\n"), HasSubstr("circle"));
}

TEST(Interpolation, NotEveryLoopIsACircle) {
  const Node node = resolved("a: {b: '${a.c}', c: 1}\nx: {c: 1, d: '${y.c}'}\ny: ${x}\n");
  EXPECT_EQ(node["a"]["b"].as<int>(), 1);
  EXPECT_EQ(node["y"]["d"].as<int>(), 1);
}

TEST(Interpolation, BombsAreRefused) {
  std::string lists = "k0: [x, x, x, x, x, x, x, x, x, x]\n";
  std::string texts = "k0: xxxxxxxxxx\n";
  std::string nests = "k0: 1\n";
  for (int i = 1; i < 30; ++i) {
    const std::string use = "${k" + std::to_string(i - 1) + "}";
    lists += "k" + std::to_string(i) + ": ['" + use + "', '" + use + "', '" + use + "', '" + use +
             "']\n";
    texts += "k" + std::to_string(i) + ": " + use + use + use + use + "\n";
  }
  for (int i = 1; i < 3000; ++i)
    nests += "k" + std::to_string(i) + ": {x: '${k" + std::to_string(i - 1) + "}'}\n";
  EXPECT_THAT(error_of(lists), HasSubstr("references expand to more than 1000000 values"));
  EXPECT_THAT(error_of(texts), HasSubstr("bytes of text"));
  EXPECT_THAT(error_of(nests), HasSubstr("nested more than 200 levels deep"));
  std::string open = "a: ";
  for (int i = 0; i < 10000; ++i) open += "${";
  EXPECT_THAT(error_of(open), HasSubstr("no closing brace"));
  EXPECT_THAT(error_of(open + std::string(10000, '}')), HasSubstr("nested too deep"));
  EXPECT_THAT(error_of("a: ${" + std::string(10000, '(') + "1" + std::string(10000, ')') + "}"),
              HasSubstr("nested too deep"));
}

TEST(Resolvers, EnvironmentWithDefault) {
  ::setenv("TUTTI_TEST_WORKERS", "12", 1);
  ::unsetenv("TUTTI_TEST_MISSING");
  const Node node = resolved(
      "a: ${oc.env:TUTTI_TEST_WORKERS}\nb: ${oc.env:TUTTI_TEST_MISSING,/tmp}/x\nc: "
      "${oc.env:TUTTI_TEST_MISSING,'p,q'}\n"
      "d: ${oc.env:TUTTI_TEST_MISSING,${a}}\ne: ${oc.env:TUTTI_TEST_MISSING,null}\n");
  EXPECT_EQ(node["a"].as<int>(), 12);
  EXPECT_EQ(node["b"].raw(), "/tmp/x");
  EXPECT_EQ(node["c"].raw(), "p,q");
  EXPECT_EQ(node["d"].as<int>(), 12);
  EXPECT_TRUE(node["e"].is_null());
  EXPECT_THAT(error_of("a: ${oc.env:TUTTI_TEST_MISSING}\n"),
              HasSubstr("'TUTTI_TEST_MISSING' is not set"));
  EXPECT_THAT(error_of("a: ${oc.enf:X}\n"), HasSubstr("did you mean 'oc.env'?"));
}

TEST(Resolvers, PathsAreTakenFromTheYamlFile) {
  const Files files;
  files.write("data/tokens.txt", "<blank>\n a \n1\n");
  const fs::path file =
      files.write("conf/train_x.yaml",
                  "tokens: ${load_line:../data/tokens.txt}\npath: "
                  "${config_path:../data}\ntag: ${self_name:}\nup: ${config_path:..}\n");
  const Node node = load({.files = {file}});
  EXPECT_EQ(node["tokens"].as<std::vector<std::string>>(),
            (std::vector<std::string>{"<blank>", "a", "1"}));
  EXPECT_EQ(node["path"].raw(), (files.folder() / "data").string());
  EXPECT_EQ(node["up"].raw(), files.folder().string());  // no slash at the end
  EXPECT_EQ(node["tag"].raw(), "train_x");
  const fs::path bad = files.write("conf/bad.yaml", "t: ${load_line:none.txt}\n");
  EXPECT_THAT(error_of([&] { load({.files = {bad}}); }),
              HasSubstr("bad.yaml:1:4: t: in ${load_line:none.txt}: no file"));
}

TEST(Resolvers, AProgramMayAddItsOwn) {
  const Files files;
  Resolvers resolvers = Resolvers::standard();
  resolvers.add("twice", [](const ResolverCall& call) {
    return text_value(call.argument(0) + call.argument(0));
  });
  const fs::path file = files.write("a.yaml", "a: ${twice:ab}\n");
  EXPECT_EQ(load({.files = {file}, .resolvers = resolvers})["a"].raw(), "abab");
}

TEST(Load, LaterFilesMergeOverEarlier) {
  const Files files;
  const fs::path recipe = files.write("training.yaml",
                                      "seed: 1\ninit: x\nlist: [1, 2]\nparallel:\n  env: local\n  "
                                      "n_workers: 1\ntag: ${self_name:}\n");
  const fs::path overlay =
      files.write("parallel_slurm.yaml",
                  "init: null\nlist: [3]\nparallel:\n  env: slurm\n  options: {queue: gpu}\n");
  const Node node = load({.files = {recipe, overlay}});
  EXPECT_EQ(
      to_json(node).dump(),
      R"({"seed":1,"init":null,"list":[3],"parallel":{"env":"slurm","n_workers":1,"options":{"queue":"gpu"}},"tag":"training"})");
  EXPECT_EQ(node["parallel"]["env"].mark().describe(), overlay.string() + ":4:8");
  EXPECT_EQ(node["parallel"]["n_workers"].mark().describe(), recipe.string() + ":6:14");
}

TEST(Load, OptionsGoWithTheirEnv) {
  const Files files;
  const fs::path recipe = files.write(
      "inference.yaml", "parallel: {env: local, n_workers: 2, options: {threads_per_worker: 1}}\n");
  const fs::path slurm =
      files.write("parallel_slurm.yaml", "parallel: {env: slurm, options: {queue: gpu}}\n");
  const fs::path more = files.write("more.yaml", "parallel: {env: slurm, options: {cores: 2}}\n");
  const auto parallel = [](const LoadOptions& options) {
    return to_json(load(options)["parallel"]);
  };
  EXPECT_EQ(
      parallel({.files = {recipe, slurm, more}}),
      Json::parse(R"({"env": "slurm", "n_workers": 2, "options": {"queue": "gpu", "cores": 2}})"));
  EXPECT_EQ(parallel({.files = {recipe}, .overrides = {"parallel.env=slurm"}}),
            Json::parse(R"({"env": "slurm", "n_workers": 2})"));
  EXPECT_EQ(
      parallel({.files = {recipe}, .overrides = {"parallel.env=local"}}),
      Json::parse(R"({"env": "local", "n_workers": 2, "options": {"threads_per_worker": 1}})"));
  for (const auto& overrides :
       {std::vector<std::string>{"+parallel.options.queue=cpu", "parallel.env=slurm"},
        std::vector<std::string>{"parallel.env=slurm", "+parallel.options.queue=cpu"}})
    EXPECT_EQ(parallel({.files = {recipe}, .overrides = overrides}),
              Json::parse(R"({"env": "slurm", "n_workers": 2, "options": {"queue": "cpu"}})"));
}

TEST(Load, DefaultsList) {
  const Files files;
  files.write("conf/base.yaml", "seed: 1\nnum_device: 1\n");
  files.write("conf/model/small.yaml", "size: 4\ndrop: 0.1\n");
  files.write("conf/shared/opt.yaml", "lr: 1\n");
  const fs::path file =
      files.write("conf/a.yaml",
                  "defaults:\n  - base\n  - model: small\n  - optimizer: shared/opt\n  - "
                  "scheduler: null\nseed: 2\nmodel: {drop: 0.2}\n");
  EXPECT_EQ(to_json(load({.files = {file}})).dump(),
            R"({"seed":2,"num_device":1,"model":{"size":4,"drop":0.2},"optimizer":{"lr":1}})");
  const fs::path first = files.write("conf/b.yaml", "defaults: [_self_, base]\nseed: 2\n");
  EXPECT_EQ(load({.files = {first}})["seed"].as<int>(), 1);
  const fs::path circle = files.write("conf/c.yaml", "defaults: [d]\n");
  files.write("conf/d.yaml", "defaults: [c]\n");
  EXPECT_THAT(error_of([&] { load({.files = {circle}}); }),
              HasSubstr("defaults go in a circle: c.yaml -> d.yaml -> c.yaml"));
  const fs::path missing = files.write("conf/e.yaml", "defaults:\n  - bass\n");
  EXPECT_THAT(error_of([&] { load({.files = {missing}}); }),
              HasSubstr("e.yaml:2:5: defaults.0: no file"));
}

TEST(Load, MissingAndEmptyFiles) {
  const Files files;
  EXPECT_THAT(error_of([&] { load({.files = {files.folder() / "none.yaml"}}); }),
              HasSubstr("No such file"));
  EXPECT_EQ(load({.files = {files.write("empty.yaml", "")}}).size(), 0U);
  EXPECT_THAT(error_of([&] { load({.files = {files.write("list.yaml", "- 1\n")}}); }),
              HasSubstr("expected a map of keys"));
}

class Overrides : public ::testing::Test {
 protected:
  Node with(const std::vector<std::string>& overrides) {
    return load({.files = {file_}, .overrides = overrides});
  }
  std::string error(const std::string& text) {
    return error_of([&] { with({text}); });
  }
  Files files_;
  fs::path file_ = files_.write("a.yaml",
                                "trainer:\n  devices: 1\n  logger: [{name: tb}, {name: csv}]\nnum: "
                                "${trainer.devices}\ngone: 1\n");
};

TEST_F(Overrides, SetAddAppendRemove) {
  EXPECT_EQ(with({"trainer.devices=4"})["num"].as<int>(), 4);
  EXPECT_EQ(with({"trainer.logger.1.name=x"}).find("trainer.logger.1.name").raw(), "x");
  EXPECT_EQ(with({"+trainer.logger.2={name: new}"}).find("trainer.logger.2.name").raw(), "new");
  EXPECT_EQ(with({"+new.deep.key=1"}).find("new.deep.key").as<int>(), 1);
  EXPECT_EQ(with({"++gone=2", "++other=3"})["other"].as<int>(), 3);
  EXPECT_FALSE(with({"~gone"})["gone"].defined());
  EXPECT_EQ(with({"~trainer.logger.0"})["trainer"]["logger"].size(), 1U);
  EXPECT_TRUE(with({"gone=null"})["gone"].is_null());
  EXPECT_EQ(with({"gone=12:00:00"})["gone"].raw(), "12:00:00");
  EXPECT_EQ(with({"gone=a: b"})["gone"].raw(), "a: b");
  EXPECT_EQ(with({"gone=${num}"})["gone"].as<int>(), 1);
  EXPECT_EQ(with({"gone=[1, 2]"})["gone"].as<std::vector<int>>(), (std::vector<int>{1, 2}));
  EXPECT_EQ(with({"gone="})["gone"].as<std::string>(), "");
}

TEST_F(Overrides, MistakesAreExplained) {
  EXPECT_EQ(error("trainer.devises=4"),
            "command line: trainer.devises=4: no key 'devises' under 'trainer'\n"
            "  fix: did you mean 'devices'? Or use +trainer.devises=4 to add it");
  EXPECT_THAT(error("~gonne"), HasSubstr("did you mean 'gone'?"));
  EXPECT_THAT(error("+gone=1"), HasSubstr("the key exists already"));
  EXPECT_THAT(error("trainer.logger.7.name=x"),
              HasSubstr("'trainer.logger' is a list of 2, so '7' must be an index of 0 to 1"));
  EXPECT_THAT(error("gone.x=1"), HasSubstr("'gone' is '1', so it has no key 'x'"));
  EXPECT_THAT(error("gone"), HasSubstr("not an override"));
  EXPECT_THAT(error("a..b=1"), HasSubstr("a part of the key is empty"));
  EXPECT_THAT(error("gone=[1"), HasSubstr("close the bracket"));
}

TEST(Load, FiftyThousandTokensInline) {
  std::string text = "token_list: [";
  for (int i = 0; i < 50000; ++i) text += (i ? ", " : "") + std::string("tok") + std::to_string(i);
  const Node node = resolved(text + "]\nmodel: {tokens: '${token_list}'}\n");
  EXPECT_EQ(node["model"]["tokens"].size(), 50000U);
  EXPECT_EQ(node["model"]["tokens"][49999].raw(), "tok49999");
}

}  // namespace
}  // namespace tutti::config
