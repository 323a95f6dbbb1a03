// The demo's web server: one page and what it calls, no outside resources (docs/decoding.md).
//
//   GET  /api/info          {"title", "description", "examples": [names]}
//   GET  /api/examples/N    the bytes of example N
//   POST /api/recognize     the bytes of an audio file; answers with what the recogniser returns,
//                           or {"error"} with 400, 413, 422, 429 or 500
//
//   DemoServer server({.port = 8000}, [&](const data::Audio& audio) { return recognise(audio); });
//   server.run();     // until stop() or a signal
//
// The recogniser is called from one thread at a time. Only loopback is served unless `host` says
// otherwise; uploads are limited in size and each client in requests per minute.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/core/json.h"

namespace tutti::systems {

struct DemoOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any free one, see port()
  std::string title = "Tutti";
  std::string description;
  std::vector<std::filesystem::path> examples;  // audio files the page offers
  std::size_t max_upload_bytes = 25 << 20;
  int max_requests_per_minute = 60;  // per client address
};

class DemoServer {
 public:
  // Gets the path of an uploaded audio file; returns what the page shows:
  // {"text", "tokens": [{"token", "begin", "end"}], "nbest": [{"text", "score"}], "rtf",
  // "seconds"}. An Error it throws is shown to the user, without the path.
  using Recognizer = std::function<Json(const std::string& audio_path)>;

  DemoServer(DemoOptions options, Recognizer recognizer);
  ~DemoServer();
  int port() const;  // bound at construction; IoError when the port is taken
  void run();        // blocks
  void stop();       // from any thread

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::systems
