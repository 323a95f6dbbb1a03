// The demo page in a real browser: a file dropped on it, and a (fake) microphone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "tests/systems/web_driver.h"
#include "tutti/data/io/audio.h"
#include "tutti/systems/demo/server.h"

namespace tutti::systems {
namespace {

using testing::HasSubstr;
using testing::Not;

data::Audio tone(int sample_rate, double seconds) {
  data::Audio audio{.samples = {}, .sample_rate = sample_rate};
  for (int i = 0; i < sample_rate * seconds; ++i)
    audio.samples.push_back(
        static_cast<float>(0.5 * std::sin(2 * std::numbers::pi * 440 * i / sample_rate)));
  return audio;
}

// Answers with what it heard, so that a test can tell whether the audio arrived whole.
class DemoPage : public testing::Test {
 protected:
  void serve(DemoOptions options = {}) {
    options.port = 0;
    options.title = "Digits & <friends>";
    server_ = std::make_unique<DemoServer>(options, [](const std::string& path) {
      const data::Audio audio = data::read_audio(path);
      double energy = 0;
      for (const float x : audio.samples) energy += static_cast<double>(x) * x;
      const double seconds = static_cast<double>(audio.samples.size()) / audio.sample_rate;
      const std::string text = energy > 1 ? "heard a tone" : "heard silence";
      return Json{
          {"text", text},
          {"tokens",
           {{{"token", "tone"}, {"begin", 0.0}, {"end", seconds / 2}},
            {{"token", "<space>"}, {"begin", seconds / 2}, {"end", seconds}}}},
          {"nbest",
           {{{"text", text}, {"score", -0.5}}, {{"text", "heard a stone"}, {"score", -2.5}}}},
          {"rtf", 0.01},
          {"seconds", seconds}};
    });
    thread_ = std::thread([this] { server_->run(); });
    url_ = "http://127.0.0.1:" + std::to_string(server_->port()) + "/";
  }
  // On the heap: Debian's library is built with TLS and its clients are a byte larger than the header tells us.
  std::unique_ptr<httplib::Client> client() const {
    return std::make_unique<httplib::Client>("127.0.0.1", server_->port());
  }
  void TearDown() override {
    server_->stop();
    thread_.join();
  }

  TempFolder folder_;
  std::unique_ptr<DemoServer> server_;
  std::thread thread_;
  std::string url_;
};

TEST_F(DemoPage, ShowsTheTranscriptOfAnUploadedFile) {
  serve();
  const auto wav = folder_.path() / "tone.wav";
  data::write_wav(wav, tone(8000, 1.5));
  WebDriver browser;
  browser.open(url_);
  WebDriver::wait([&] { return browser.text("h1") == "Digits & <friends>"; });
  browser.type("#file", wav.string());
  WebDriver::wait([&] { return browser.text("#text") == "heard a tone"; });
  EXPECT_THAT(browser.text("#figures"), HasSubstr("1.50 s of audio"));
  EXPECT_THAT(browser.text("#nbest"), HasSubstr("-2.50 heard a stone"));
  EXPECT_EQ(browser.script("return shown('<space>') + shown('\u2581cat');"), "cat");
  // The waveform was drawn: some pixel of the canvas is not transparent.
  WebDriver::wait([&] {
    return browser.script(
               "const c = document.getElementById('wave');"
               "return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(v => v > "
               "0);") == true;
  });
}

TEST_F(DemoPage, RecordsFromTheMicrophone) {
  serve();
  const auto wav = folder_.path() / "microphone.wav";
  data::write_wav(wav, tone(48000, 5));
  WebDriver browser({"--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream",
                     "--use-file-for-fake-audio-capture=" + wav.string()});
  browser.open(url_);
  browser.click("#record");
  WebDriver::wait(
      [&] { return browser.script("return recording && recording.chunks.length > 10;") == true; });
  browser.click("#record");
  WebDriver::wait([&] { return browser.text("#text") == "heard a tone"; });
}

TEST_F(DemoPage, SaysWhatIsWrongWithAFile) {
  serve();
  const auto text = folder_.path() / "notes.wav";
  write_file_atomic(text, "this is not audio");
  WebDriver browser;
  browser.open(url_);
  const auto wav = folder_.path() / "tone.wav";
  data::write_wav(wav, tone(8000, 1.0));
  browser.type("#file", wav.string());
  WebDriver::wait([&] { return browser.text("#text") == "heard a tone"; });
  browser.type("#file", text.string());
  WebDriver::wait([&] { return !browser.text("#error").empty(); });
  EXPECT_THAT(browser.text("#error"), HasSubstr("the recording"));
  EXPECT_THAT(browser.text("#error"), Not(HasSubstr("tutti-demo"))) << "a path of the server";
  EXPECT_EQ(browser.text("#text"), "") << "of the recording before";
}

TEST_F(DemoPage, AsksAgainWhenTheNetworkChangesUnderARequest) {
  serve();
  const auto wav = folder_.path() / "tone.wav";
  data::write_wav(wav, tone(8000, 1.0));
  WebDriver browser;
  browser.open(url_);
  // What a browser answers when an interface of the machine comes or goes, for the next two requests.
  browser.script(
      "const whole = window.fetch; let broken = 2;"
      "window.fetch = (...request) => broken-- > 0 ? Promise.reject(new TypeError('changed')) : "
      "whole(...request);");
  browser.type("#file", wav.string());
  WebDriver::wait(
      [&] { return browser.text("#text") == "heard a tone" || !browser.text("#error").empty(); });
  EXPECT_EQ(browser.text("#error"), "");
}

TEST_F(DemoPage, OffersExamples) {
  const auto wav = folder_.path() / "one two.wav";
  data::write_wav(wav, tone(8000, 1.0));
  serve({.examples = {wav}});
  WebDriver browser;
  browser.open(url_);
  WebDriver::wait([&] { return browser.text("#examples") == "Or listen in: one two"; });
  browser.click(".example");
  WebDriver::wait([&] { return browser.text("#text") == "heard a tone"; });
  const auto http = client();
  EXPECT_EQ(http->Get("/api/examples/0")->body, read_file(wav));
  EXPECT_EQ(http->Get("/api/examples/1")->status, 404);
  EXPECT_EQ(http->Get("/api/examples/..%2f..%2fetc%2fpasswd")->status, 404);
}

TEST_F(DemoPage, LimitsSizeAndRate) {
  serve({.max_upload_bytes = 1000, .max_requests_per_minute = 2});
  const auto http = client();
  EXPECT_EQ(http->Post("/api/recognize", std::string(5000, 'x'), "audio/wav")->status, 413);
  EXPECT_EQ(http->Post("/api/recognize", "junk", "audio/wav")->status, 422);
  EXPECT_EQ(http->Post("/api/recognize", "junk", "audio/wav")->status, 422);
  EXPECT_EQ(http->Post("/api/recognize", "junk", "audio/wav")->status, 429);
}

}  // namespace
}  // namespace tutti::systems
