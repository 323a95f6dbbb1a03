// One thread that serves many framed, authenticated connections; the store and rank 0's hub are
// both made of it. Not a public header of the room: it has no meaning without a Handler.
//
// All Handler functions run on the server's own thread, so a handler's state needs no lock.
// Strangers cost little: before the handshake a connection may send 64 KiB, lives ten seconds, and
// at most 256 of them are kept.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tutti/launch/handshake.h"

namespace tutti::launch {

class FrameServer {
 public:
  using Connection = std::uint64_t;

  class Handler {
   public:
    virtual ~Handler() = default;
    // A peer that knows the secret says hello; returns the body of the welcome. A CommError refuses
    // it with that reason.
    virtual std::string greet(Connection connection, const std::string& hello) = 0;
    virtual void receive(Connection connection, Frame frame) = 0;
    virtual void closed(Connection connection) = 0;
    // Called after every round; returns when to be called again at the latest.
    virtual Deadline tick() = 0;
  };

  struct Options {
    std::string host;              // "" = every interface
    std::vector<int> ports = {0};  // the first must be free; the others are tried, and may fail
    std::string purpose;
    std::vector<std::string> secrets;
    std::size_t max_frame = 256 << 20;
  };

  // Binds at once (throws CommError), serves after start(). `handler` must outlive the server.
  FrameServer(Handler& handler, Options options);
  ~FrameServer() { stop(); }
  FrameServer(const FrameServer&) = delete;
  FrameServer& operator=(const FrameServer&) = delete;
  void start();
  void stop() noexcept;  // joins the thread; connections close
  int port() const noexcept { return ports_.front(); }

  // From the handler's functions only.
  void send(Connection connection, const Frame& frame);
  void drop(Connection connection);

 private:
  struct Peer {
    Channel channel;
    Gatekeeper gate;
    Deadline hello_by;
    bool greeted = false;
    bool gone = false;
  };
  void loop();
  void accept_all(int listener);
  void read_from(Connection connection, Peer& peer);
  void sweep();

  // Constant after construction.
  Handler& handler_;
  Options options_;
  std::vector<UniqueFd> listeners_;
  std::vector<int> ports_;
  UniqueFd wake_;
  // Touched only by the server's thread.
  std::map<Connection, std::unique_ptr<Peer>> peers_;
  Connection next_ = 1;

  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace tutti::launch
