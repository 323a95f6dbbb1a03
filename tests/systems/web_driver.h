// A real browser for tests: Debian's chromium driven through chromedriver's HTTP protocol.
#pragma once

#include <httplib.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/subprocess.h"

namespace tutti::systems {

class WebDriver {
 public:
  explicit WebDriver(const std::vector<std::string>& more_arguments = {}) {
    const auto log = folder_.path() / "driver.log";
    // A port of our own choice, below those that the system gives away: without IPv6 chromedriver does not tell which one it got.
    static int started = 0;
    const int port = 20000 + (::getpid() * 7 + started++) % 12000;
    driver_ = Process::start(
        {.argv = {"chromedriver", "--port=" + std::to_string(port)}, .stdout_path = log});
    wait([&] {
      return std::filesystem::exists(log) &&
             read_file(log).find("started successfully") != std::string::npos;
    });
    http_ = std::make_unique<httplib::Client>("127.0.0.1", port);
    http_->set_read_timeout(180);
    std::vector<std::string> arguments = {
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-dev-shm-usage",
        "--user-data-dir=" + (folder_.path() / "profile").string()};
    arguments.insert(arguments.end(), more_arguments.begin(), more_arguments.end());
    const Json reply = call(
        "POST", "/session",
        {{"capabilities", {{"alwaysMatch", {{"goog:chromeOptions", {{"args", arguments}}}}}}}});
    session_ = "/session/" + reply["sessionId"].get<std::string>();
  }
  ~WebDriver() {
    if (!session_.empty()) http_->Delete(session_.c_str());
    driver_.terminate(std::chrono::seconds(5));
  }

  void open(const std::string& url) { call("POST", session_ + "/url", {{"url", url}}); }
  // Of what a page is shown in; windows themselves cannot be as narrow as a phone.
  void resize(int width, int height) {
    call("POST", session_ + "/goog/cdp/execute",
         {{"cmd", "Emulation.setDeviceMetricsOverride"},
          {"params",
           {{"width", width}, {"height", height}, {"deviceScaleFactor", 1}, {"mobile", false}}}});
  }
  void click(const std::string& css) { call("POST", element(css) + "/click", Json::object()); }
  void type(const std::string& css, const std::string& text) {
    call("POST", element(css) + "/value", {{"text", text}});
  }
  std::string text(const std::string& css) {
    return call("GET", element(css) + "/text", {}).get<std::string>();
  }
  Json script(const std::string& body) {
    return call("POST", session_ + "/execute/sync", {{"script", body}, {"args", Json::array()}});
  }

  // Until `condition` holds, for two minutes; throws when it never does.
  template <class Condition>
  static void wait(Condition condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline)
        throw CommError("the browser never got there");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

 private:
  Json call(const std::string& method, const std::string& path, const Json& body) {
    const auto reply = method == "GET" ? http_->Get(path.c_str())
                                       : http_->Post(path.c_str(), body.dump(), "application/json");
    if (!reply) throw CommError("chromedriver does not answer " + path);
    const Json json = parse_json(reply->body, path);
    if (reply->status != 200) throw CommError(path + ": " + reply->body.substr(0, 500));
    return json["value"];
  }
  std::string element(const std::string& css) {
    const Json found =
        call("POST", session_ + "/element", {{"using", "css selector"}, {"value", css}});
    return session_ + "/element/" + found.begin().value().get<std::string>();
  }

  TempFolder folder_;
  Process driver_;
  std::unique_ptr<httplib::Client> http_;
  std::string session_;
};

}  // namespace tutti::systems
