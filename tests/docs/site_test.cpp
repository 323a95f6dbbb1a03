// The site of ./run docs: it builds, every page and anchor that is linked exists, nothing is fetched from elsewhere,
// nothing is wider than a phone, the search finds, and troubleshooting names messages that the programs print.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "tests/docs/blocks.h"
#include "tests/places.h"
#include "tests/systems/web_driver.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/subprocess.h"
#include "tutti/core/text.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = in_source();

std::vector<std::string> all_matches(const std::string& text, const std::regex& pattern) {
  std::vector<std::string> found;
  for (auto it = std::sregex_iterator(text.begin(), text.end(), pattern);
       it != std::sregex_iterator(); ++it)
    found.push_back((*it)[1].str());
  return found;
}

std::vector<fs::path> files_in(const fs::path& folder, const std::string& extension) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().extension() == extension) files.push_back(entry.path());
  return files;
}

TEST(Site, HasEveryPageInItsNavigation) {
  static const std::regex kEntry("- .+: ([a-z0-9-]+\\.md)");
  const auto listed = all_matches(read_file(kSource / "mkdocs.yml"), kEntry);
  const std::set<std::string> nav(listed.begin(), listed.end());
  EXPECT_EQ(nav.size(), listed.size()) << "a page is listed twice";
  std::set<std::string> pages;
  for (const auto& page : files_in(kSource / "docs", ".md")) pages.insert(page.filename());
  EXPECT_EQ(nav, pages);
  const std::string readme = read_file(kSource / "README.md");
  for (const auto& page : pages)
    if (page != "index.md" && page != "benchmarks-parallel.md") {
      EXPECT_THAT(readme, testing::HasSubstr("docs/" + page)) << "README.md does not lead to it";
    }
}

TEST(Site, PagesSayWhatYouWillHaveAtTheEnd) {
  for (const auto& page : files_in(kSource / "docs", ".md")) {
    const std::string name = page.filename();
    if (name == "index.md" || name == "limitations.md" || name == "config-reference.md") continue;
    const std::string text = read_file(page);
    EXPECT_THAT(text.substr(0, 400), testing::HasSubstr("At the end of this page")) << name;
  }
}

void expect_whole_links(const fs::path& site) {
  static const std::regex kLink("href=\"([^\"]*)\"");
  static const std::regex kLoaded("<(?:script|img|link)[^>]* (?:src|href)=\"([^\"]*)\"");
  for (const auto& page : files_in(site, ".html")) {
    const std::string html = read_file(page);
    EXPECT_EQ(html.find("```"), std::string::npos) << page.filename() << " shows a fence as text";
    for (const auto& url : all_matches(html, kLoaded))
      EXPECT_FALSE(url.starts_with("http") || url.starts_with("//"))
          << page.filename() << " fetches " << url;
    for (const auto& url : all_matches(html, kLink)) {
      if (url.starts_with("http") || url.starts_with("api/") || page.filename() == "404.html")
        continue;
      const std::string target = url.substr(0, url.find('#'));
      const fs::path file = target.empty() ? page : site / target;
      if (target != ".") {
        ASSERT_TRUE(fs::exists(file)) << page.filename() << " links to " << url;
      }
      if (const auto hash = url.find('#'); hash + 1 < url.size() && hash != std::string::npos) {
        EXPECT_THAT(read_file(file), testing::HasSubstr("id=\"" + url.substr(hash + 1) + "\""))
            << page.filename() << " links to " << url;
      }
    }
  }
}

// From disk, in a real browser.
void expect_fits_a_phone_and_is_searched(const fs::path& site) {
  // The index is a script.
  const std::string index = read_file(site / "search/index.js");
  ASSERT_TRUE(index.starts_with("tuttiSearch(") && index.ends_with(");\n"));
  const Json entries = Json::parse(index.substr(12, index.size() - 15))["docs"];
  EXPECT_GT(entries.size(), 100U);
  EXPECT_FALSE(fs::exists(site / "search/worker.js"));
  systems::WebDriver browser;
  browser.resize(390, 844);
  const std::string address = "file://" + site.string() + "/";
  for (const auto& page : docs_pages()) {
    browser.open(address + page.stem().string() + ".html");
    EXPECT_LE(browser.script("return document.documentElement.scrollWidth;").get<int>(), 390)
        << page.filename() << " has to be moved sideways";
  }
  browser.open(address + "search.html?q=requeue");
  systems::WebDriver::wait([&] {
    return browser.text("#mkdocs-search-results").find("Stopping and going on") !=
           std::string::npos;
  });
}

// One test: the site is built once.
TEST(Site, BuildsWithWholeLinksFitsAPhoneAndIsSearchedFromDisk) {
  const TempFolder folder;
  const auto result = run_command(
      {.argv = {"mkdocs", "build", "--strict", "--quiet", "--site-dir", folder.path().string()},
       .cwd = kSource,
       .timeout = std::chrono::minutes(2)});
  ASSERT_TRUE(result.ok()) << result.describe();
  expect_whole_links(folder.path());
  expect_fits_a_phone_and_is_searched(folder.path());
}

// All string literals of the programs, neighbours joined as the compiler does.
std::string all_messages() {
  static const std::regex kSeam("\"[ \\n]*\"");
  std::string text;
  for (const char* top : {"tutti", "apps", "recipes"})
    for (const auto& entry : fs::recursive_directory_iterator(kSource / top))
      if (entry.path().extension() == ".cpp" || entry.path().extension() == ".h")
        text += read_file(entry.path());
  return std::regex_replace(text, kSeam, "");
}

TEST(Site, TroubleshootingNamesMessagesThatExist) {
  const std::string sources = all_messages();
  static const std::regex kPlace("\\{[a-z0-9_:.<>]*\\}");  // of a format string
  const std::string messages = std::regex_replace(sources, kPlace, "...");
  int count = 0;
  for (const auto& line : split(read_file(kSource / "docs/troubleshooting.md"), '\n')) {
    if (!line.starts_with("| `")) continue;
    const std::string message = line.substr(3, line.find('`', 3) - 3);
    EXPECT_THAT(messages, testing::HasSubstr(message)) << "no program prints this";
    ++count;
  }
  EXPECT_GE(count, 20);
}

// bins x accumulation x GPUs of every line: another batch wants another learning rate.
TEST(Recipes, LinesOfLibrispeechKeepTheEffectiveBatch) {
  const auto number = [](const std::string& line, const std::string& key, long otherwise) {
    const std::size_t at = line.find(key + "=");
    return at == std::string::npos ? otherwise : std::stol(line.substr(at + key.size() + 1));
  };
  int count = 0;
  for (const auto& line : split(read_file(kSource / "recipes/librispeech_100/README.md"), '\n')) {
    if (line.find("tutti train --config $T") == std::string::npos) continue;
    EXPECT_EQ(number(line, "$B", 3800000) * number(line, "accumulate_grad_batches", 4) *
                  number(line, "num_device", 1) * number(line, "num_nodes", 1),
              15200000)
        << line;
    ++count;
  }
  EXPECT_EQ(count, 4);
}

}  // namespace
}  // namespace tutti
