// The first three frames of every connection: challenge, hello, welcome (or refusal).
//
// Both sides prove that they hold the secret; a peer of another run (stale address file, reused
// port) is turned away by `purpose`, which names the service and the run. Until it has proven
// itself a peer may send 64 KiB and take ten seconds, no more.
#pragma once

#include <string>
#include <vector>

#include "tutti/launch/socket.h"

namespace tutti::launch {

constexpr std::size_t kMaxHello = 64 << 10;
constexpr double kHandshakeSeconds = 10;

// The server answered and said no. `knows_us`: it holds our secret and serves our run, so trying
// again will not help; otherwise it may be a stranger on a reused port.
class RefusedError : public CommError {
 public:
  RefusedError(const std::string& message, bool knows_us)
      : CommError(message), knows_us_(knows_us) {}
  bool knows_us() const noexcept { return knows_us_; }

 private:
  bool knows_us_;
};

// The server's half. One object per connection.
class Gatekeeper {
 public:
  // Any one of `secrets` opens the door.
  Gatekeeper(std::string purpose, std::vector<std::string> secrets);
  Frame challenge() const;
  // The hello's body. Throws CommError when the proof is wrong or the purpose another.
  std::string check(const Frame& hello);
  // REQUIRES: check() has returned.
  Frame welcome(const std::string& body) const;
  static Frame refusal(const std::string& reason, bool knows_us);

 private:
  std::string purpose_;
  std::vector<std::string> secrets_;
  std::string own_nonce_;
  std::string peer_nonce_;
  std::string secret_;  // the one that fitted
};

// The client's half: connects, proves, checks the server's proof. `welcome` gets the answer's body.
// Throws CommError (nobody there) or RefusedError.
Channel connect_with_secret(const Address& address, const std::string& purpose,
                            const std::string& secret, const std::string& body, Deadline deadline,
                            std::string& welcome);

}  // namespace tutti::launch
