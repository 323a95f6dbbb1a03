#include "tutti/systems/demo/server.h"

#include <fmt/format.h>
#include <httplib.h>
#include <sys/socket.h>

#include <cerrno>
#include <deque>
#include <map>
#include <mutex>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/systems/demo/page.h"

namespace tutti::systems {
namespace {

// Lets a client through at most `limit` times in any minute.
class RateLimit {
 public:
  explicit RateLimit(int limit) : limit_(static_cast<std::size_t>(limit)) {}
  bool admit(const std::string& client) {
    const double now = Clock::system().unix_seconds();
    const std::lock_guard lock(mutex_);
    auto& times = times_[client];
    while (!times.empty() && times.front() < now - 60) times.pop_front();
    if (times.size() >= limit_) return false;
    times.push_back(now);
    if (times_.size() > 10000)
      times_.clear();  // bounded memory matters more than a forgotten minute
    return true;
  }

 private:
  const std::size_t limit_;
  std::mutex mutex_;
  std::map<std::string, std::deque<double>> times_;  // guarded by mutex_
};

// The path of our own copy means nothing to who sent the file, and is none of their business.
std::string without_path(std::string message, const std::string& path) {
  for (std::size_t at = 0; (at = message.find(path, at)) != std::string::npos;)
    message.replace(at, path.size(), "the recording");
  return message;
}

constexpr const char* kTooLarge = "the file is too large";

void reply(httplib::Response& response, int status, const Json& body) {
  response.status = status;
  response.set_content(to_json_line(body), "application/json");
}

}  // namespace

struct DemoServer::Impl {
  Impl(DemoOptions o, Recognizer r)
      : options(std::move(o)), recognizer(std::move(r)), rate(options.max_requests_per_minute) {}

  // We read the body ourselves: httplib takes what curl sends by default for a form, of at most
  // 8 KiB, and waits for bytes that were never announced until its timeout.
  void recognise(const httplib::Request& request, httplib::Response& response,
                 const httplib::ContentReader& read) {
    const char* const kWanted = "send the bytes of an audio file: curl --data-binary @FILE.wav";
    if (!request.has_header("Content-Length") && !request.has_header("Transfer-Encoding"))
      return reply(response, 400, {{"error", kWanted}});
    std::string body;
    bool too_large = false;
    const auto take = [&](const char* bytes, std::size_t count) {
      too_large = body.size() + count > options.max_upload_bytes;
      if (!too_large) body.append(bytes, count);
      return !too_large;
    };
    const auto next_part = [&](const httplib::MultipartFormData&) {
      body.clear();  // the last part of a form is the file
      return true;
    };
    const bool whole = request.is_multipart_form_data() ? read(next_part, take) : read(take);
    if (too_large || response.status == 413) return reply(response, 413, {{"error", kTooLarge}});
    if (!whole) return reply(response, 400, {{"error", "the upload was cut short"}});
    if (!rate.admit(request.remote_addr))
      return reply(response, 429, {{"error", "too many requests; wait a minute"}});
    if (body.empty()) return reply(response, 400, {{"error", kWanted}});
    const TempFolder folder("tutti-demo");
    const auto path = folder.path() / "audio";
    try {
      write_file_atomic(path, body, 0600);
      const std::lock_guard lock(recognizer_mutex);
      reply(response, 200, recognizer(path.string()));
    } catch (const Error& e) {
      reply(response, 422, {{"error", without_path(e.what(), path.string())}});
    } catch (const std::exception& e) {
      log::error("demo: {}", e.what());
      reply(response, 500, {{"error", "internal error; see the server's log"}});
    }
  }

  void send_example(const httplib::Request& request, httplib::Response& response) const {
    // At most six digits: whatever else is asked for is no example.
    const std::size_t number = std::stoul(request.matches[1].str());
    if (number >= options.examples.size())
      return reply(response, 404, {{"error", "no such example"}});
    try {
      response.set_content(read_file(options.examples[number]), "application/octet-stream");
    } catch (const Error& e) {
      log::warning("demo: {}", e.what());
      reply(response, 404, {{"error", "this example is gone"}});
    }
  }

  DemoOptions options;
  Recognizer recognizer;
  RateLimit rate;
  std::mutex recognizer_mutex;
  httplib::Server http;
  int port = 0;
};

DemoServer::DemoServer(DemoOptions options, Recognizer recognizer)
    : impl_(std::make_unique<Impl>(std::move(options), std::move(recognizer))) {
  auto& http = impl_->http;
  http.set_payload_max_length(impl_->options.max_upload_bytes);
  http.set_read_timeout(30);
  http.Get("/", [](const httplib::Request&, httplib::Response& response) {
    // The page runs its own inline script and nothing else; the browser enforces it.
    response.set_header("Content-Security-Policy",
                        "default-src 'none'; script-src 'unsafe-inline'; style-src "
                        "'unsafe-inline'; connect-src 'self'; "
                        "media-src blob: data:; img-src data:");
    response.set_content(std::string(kDemoPage), "text/html; charset=utf-8");
  });
  http.Get("/api/info", [this](const httplib::Request&, httplib::Response& response) {
    Json names = Json::array();
    for (const auto& example : impl_->options.examples) names.push_back(example.stem().string());
    reply(response, 200,
          {{"title", impl_->options.title},
           {"description", impl_->options.description},
           {"examples", names}});
  });
  http.Get("/api/examples/([0-9]{1,6})",
           [this](const httplib::Request& request, httplib::Response& response) {
             impl_->send_example(request, response);
           });
  http.Post("/api/recognize", [this](const httplib::Request& request, httplib::Response& response,
                                     const httplib::ContentReader& read) {
    impl_->recognise(request, response, read);
  });
  // httplib's own choice, SO_REUSEPORT, lets two servers share a port and the answers alternate.
  http.set_socket_options([](int socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  const auto& o = impl_->options;
  errno = 0;
  impl_->port = o.port == 0 ? http.bind_to_any_port(o.host)
                            : (http.bind_to_port(o.host, o.port) ? o.port : -1);
  if (impl_->port > 0) return;
  const std::string where = fmt::format("cannot listen on {}:{}", o.host, o.port);
  if (errno == EADDRINUSE)
    throw IoError(where + ": another program listens there",
                  "end it, or choose another port with server.port");
  throw IoError(where, "choose another address with server.host and server.port");
}

DemoServer::~DemoServer() = default;

int DemoServer::port() const { return impl_->port; }

void DemoServer::run() { impl_->http.listen_after_bind(); }

void DemoServer::stop() { impl_->http.stop(); }

}  // namespace tutti::systems
