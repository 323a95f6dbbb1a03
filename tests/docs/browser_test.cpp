// The site of ./run docs in a real browser, from disk: nothing is wider than a phone, and the search finds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/docs/blocks.h"
#include "tests/systems/web_driver.h"

namespace tutti {
namespace {

TEST(Site, FitsAPhoneAndIsSearchedFromDisk) {
  const TempFolder folder;
  const auto built = run_command(
      {.argv = {"mkdocs", "build", "--strict", "--quiet", "--site-dir", folder.path().string()},
       .cwd = TUTTI_SOURCE_DIR,
       .timeout = std::chrono::minutes(2)});
  ASSERT_TRUE(built.ok()) << built.describe();
  const std::string site = "file://" + folder.path().string() + "/";
  systems::WebDriver browser;
  browser.resize(390, 844);
  for (const auto& page : docs_pages()) {
    browser.open(site + page.stem().string() + ".html");
    EXPECT_LE(browser.script("return document.documentElement.scrollWidth;").get<int>(), 390)
        << page.filename() << " has to be moved sideways";
  }
  browser.open(site + "search.html?q=requeue");
  systems::WebDriver::wait([&] {
    return browser.text("#mkdocs-search-results").find("Stopping and going on") !=
           std::string::npos;
  });
}

}  // namespace
}  // namespace tutti
