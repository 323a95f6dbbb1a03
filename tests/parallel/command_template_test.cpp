// Items as arguments of commands: whatever their bytes, and however the user quoted their place.
#include "tutti/parallel/worker/command_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/random.h"
#include "tutti/core/text.h"

namespace tutti::parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string rewritten(const std::string& line) {
  std::vector<std::string_view> variables;
  return with_references(line, variables);
}

// Runs the template for one item and gives its output.
std::string output(const std::vector<std::string>& words, const std::string& item) {
  const CommandResult result = run_command(CommandTemplate(words, false).for_item(item, 7));
  EXPECT_EQ(result.exit_code, 0) << result.describe();
  return result.out;
}

TEST(CommandTemplate, WordsAreFilledInOnePass) {
  const CommandTemplate words({"cp", "{}", "{index}:{.}:{/}:{//}:{/.}"}, false);
  EXPECT_THAT(words.for_item("a/b.c/d.wav", 3).argv,
              ElementsAre("cp", "a/b.c/d.wav", "3:a/b.c/d:d.wav:a/b.c:d"));
  // An item that looks like a place is no place.
  EXPECT_THAT(words.for_item("{index}", 3).argv,
              ElementsAre("cp", "{index}", "3:{index}:{index}:.:{index}"));
  EXPECT_EQ(words.for_item("/x", 0).argv[2], "0:/x:x:/:x");
  EXPECT_EQ(words.for_item(".hidden", 0).argv[2], "0:.hidden:.hidden:.:.hidden");
}

TEST(CommandTemplate, ReferencesStandInsideOfTheUsersQuotes) {
  EXPECT_EQ(rewritten("cat {} x"), "cat \"${TUTTI_ITEM?}\" x");
  EXPECT_EQ(rewritten("echo \"a {} b\""), "echo \"a ${TUTTI_ITEM?} b\"");
  EXPECT_EQ(rewritten("echo 'a {} b'"), "echo 'a '\"${TUTTI_ITEM?}\"' b'");
  EXPECT_EQ(rewritten("echo \\{} {index}"), "echo \\{} {index}");
  EXPECT_EQ(rewritten("x # it's {}\ncat {.}"), "x # it's {}\ncat \"${TUTTI_ITEM_STEM?}\"");
  EXPECT_EQ(rewritten("cat <<E\n\"{}\"\nE\n"), "cat <<E\n\"${TUTTI_ITEM?}\"\nE\n");
}

TEST(CommandTemplate, BytesArriveAsTheyAreInEveryKindOfQuotes) {
  const std::string hostile = "a'b\"c $(touch no) `touch no` \\ \n\t*;&|<>(){}[]!#~\xff\x81 $HOME";
  for (const char* line :
       {"printf %s {}", "printf %s \"{}\"", "printf %s '{}'", "x={}; printf %s \"$x\"",
        "printf '%s' \"$(printf '%sX' {})\" | head -c -1", "printf %s `printf %s a`{} | tail -c +2",
        "f() { printf %s {}; }; f other", "( printf %s {} )", "if true; then printf %s {}; fi",
        "case {} in zzz) echo no;; *) printf %s {};; esac",
        "printf %s \"$(case x in x) printf %sX {};; esac)\" | head -c -1", "sh -c 'printf %s {}'",
        "eval 'printf %s {}'", "trap 'printf %s {}' EXIT", "env A=1 bash -c 'printf %s \"{}\"'",
        "printf %s \"\\\\\"{} | tail -c +2", "printf %s \"\\{}\" | tail -c +2",
        "echo it\\'s >/dev/null; printf %s {}"})
    EXPECT_EQ(output({line}, hostile), hostile) << line;
  EXPECT_EQ(output({"sh", "-c", "printf %s {}"}, hostile), hostile);
  EXPECT_EQ(output({"sh", "-c", "printf %s \"$1\"", "sh", "{}"}, hostile), hostile);
  EXPECT_EQ(output({"bash", "-o", "pipefail", "-c", "printf %s '{}'"}, hostile), hostile);
  EXPECT_EQ(output({"printf", "%s", "{}"}, hostile), hostile);
  EXPECT_EQ(output({"cat <<E\n{}\nE\n"}, hostile), hostile + "\n");
  EXPECT_EQ(output({"cat <<-E; printf %s {}\n\t'\\{}'\n\tE\n"}, hostile),
            "'\\" + hostile + "'\n" + hostile);
}

TEST(CommandTemplate, WhatCannotBeSafeIsRefusedWithAWayOut) {
  for (const char* line :
       {"echo $(({} + 1))", "echo $[{}]", "sh -c \"echo {}\"", "eval echo {}", "ssh host cat {}",
        "trap \"rm {}\" EXIT", "echo ${x:-{}}", "echo ${}", "let x={}", "bash -c \"cat '{}'\"",
        "[[ {} -eq 3 ]] && echo", "cat <<'E'\n{}\nE\n", "echo $'a\\'{}'", "fish -c 'echo {}'",
        "echo \"`echo \\\"{}\\\"`\"", "echo '{}", "echo \"{}", "echo $(cat {}", "echo {})"}) {
    try {
      const CommandTemplate refused({line}, false);
      ADD_FAILURE() << line << " was taken";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("cannot be put safely")) << line;
      EXPECT_FALSE(error.fix().empty()) << line;
    }
  }
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"ssh", "host", "cat", "{}"},
                                             {"timeout", "5", "ssh", "host", "cat", "{}"},
                                             {"su", "me", "-c", "cat {}"},
                                             {"su", "-", "me", "--command=cat {}"},
                                             {"flock", "lock", "-c", "cat {}"},
                                             {"script", "-qc", "cat {}", "/dev/null"},
                                             {"watch", "-n1", "cat", "{}"},
                                             {"su me -c 'cat {}'"},
                                             {"flock lock -c \"cat {}\""},
                                             {"script -qc 'cat {}' /dev/null"},
                                             {"sudo -u me ssh host cat {}"}}) {
    for (const bool numbers : {false, true}) {
      try {
        const CommandTemplate refused(words, numbers);
        ADD_FAILURE() << join(words, " ") << " was taken";
      } catch (const ConfigError& error) {
        EXPECT_THAT(error.what(), HasSubstr("as a command")) << join(words, " ");
        EXPECT_FALSE(error.fix().empty()) << join(words, " ");
      }
    }
  }
  // Not every word is a call.
  EXPECT_EQ(output({"echo", "ssh", "{}"}, "x"), "ssh x\n");
  EXPECT_EQ(output({"echo ssh {}"}, "x"), "ssh x\n");
  EXPECT_EQ(output({"flock", "/dev/null", "echo", "{}"}, "$(x)"), "$(x)\n");
}

// A number is put in by the shell as any item is; it may be evaluated.
TEST(CommandTemplate, NumbersMayBeEvaluatedAndAreNoShellTextEither) {
  for (const char* line : {"echo $(({} + 1))", "echo $[{} + 1]", "let x={}+1; echo $x",
                           "if [[ {} -eq 41 ]]; then echo 42; fi", "sh -c 'echo $(({} + 1))'"}) {
    std::vector<std::string_view> variables;
    EXPECT_EQ(with_references(line, variables, true).find("{}"), std::string::npos) << line;
    EXPECT_EQ(run_command(CommandTemplate({"bash", "-c", line}, true).for_item("41", 41)).out,
              "42\n")
        << line;
  }
}

// Where the variable does not come through, the command fails: `rm -r data/{}` must not lose its
// last part.
TEST(CommandTemplate, AnItemThatGotLostIsAnErrorAndNotAnEmptyWord) {
  const auto result = run_command(
      CommandTemplate({"env -i sh -c 'echo ran; echo data/{}'"}, false).for_item("x", 0));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("TUTTI_ITEM"));
}

// Ten thousand names made of everything a shell knows, in the six natural ways to quote their place.
// The template's text does not depend on the item, so one shell can run it for all of them.
TEST(CommandTemplate, TenThousandHostileNamesInSixWaysOfQuoting) {
  const TempFolder folder;
  Random random({17});
  const std::vector<std::string> parts = {"$(touch PWNED)",
                                          "`touch PWNED`",
                                          "\"; touch PWNED; \"",
                                          "'; touch PWNED; '",
                                          "\\",
                                          "'",
                                          "\"",
                                          "$",
                                          "`",
                                          "${IFS}",
                                          "&touch PWNED&",
                                          "|touch PWNED|",
                                          ";touch PWNED;",
                                          "*",
                                          "?",
                                          "[a]",
                                          "~",
                                          "#",
                                          "!",
                                          " ",
                                          "\t",
                                          "{}",
                                          "{index}",
                                          "$1",
                                          "$TUTTI_ITEM",
                                          "%s",
                                          "-n",
                                          "\xff",
                                          "\x81",
                                          "\x88",
                                          "é",
                                          "a",
                                          "(",
                                          ")",
                                          "<",
                                          ">PWNED",
                                          "\\'",
                                          "\\\"",
                                          "\r",
                                          "\x1b[0m"};
  std::string names;
  for (int i = 0; i < 10000; ++i) {
    const std::size_t length = 1 + random() % 8;
    for (std::size_t k = 0; k < length; ++k) names += parts[random() % parts.size()];
    names += "\n";
  }
  const auto run_all = [&](const char* shell, const std::string& some) {
    write_file_atomic(folder.path() / "names", some);
    for (const char* line :
         {"printf '%s\\n' {}", "printf '%s\\n' \"{}\"", "printf '%s\\n' '{}'",
          "printf '%s\\n' \"$(printf %sX {})\"", "printf '%s\\n' \"`printf %sX {}`\"",
          "IFS= read -r x <<E; printf '%s\\n' \"$x\"\n{}\nE\n"}) {
      const std::string program =
          "while IFS= read -r TUTTI_ITEM; do\n" + rewritten(line) + "\ndone <names";
      std::string want = some;
      if (std::string(line).find("%sX") != std::string::npos) {  // keeps blanks at the end
        want.clear();
        for (const auto& name : split(some.substr(0, some.size() - 1), '\n')) want += name + "X\n";
      }
      const auto result = run_command({.argv = {shell, "-c", program},
                                       .cwd = folder.path(),
                                       .timeout = std::chrono::seconds(300),
                                       .capture_limit = std::size_t{64} << 20});
      EXPECT_EQ(result.exit_code, 0) << shell << ": " << line << ": " << result.err;
      EXPECT_TRUE(result.out == want) << shell << ": " << line << ": bytes have changed";
      EXPECT_FALSE(std::filesystem::exists(folder.path() / "PWNED")) << shell << ": " << line;
    }
  };
  run_all("/bin/sh", names);
  std::size_t end = 0;
  for (int i = 0; i < 1000; ++i) end = names.find('\n', end) + 1;
  run_all("bash", names.substr(0, end));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()),
                          std::filesystem::directory_iterator()),
            1);
}

}  // namespace
}  // namespace tutti::parallel
