#include "tutti/launch/handshake.h"

#include "tutti/core/error.h"
#include "tutti/launch/auth.h"

namespace tutti::launch {
namespace {

enum Type : std::uint8_t { kChallenge = 1, kHello = 2, kWelcome = 3, kRefused = 4 };

constexpr std::size_t kMaxWelcome = 16 << 20;  // may carry the table of all ranks

std::string client_proof(const std::string& secret, const std::string& server_nonce,
                         const std::string& client_nonce, const std::string& purpose,
                         const std::string& body) {
  return hmac_sha256(secret, Builder()
                                 .text("client")
                                 .text(server_nonce)
                                 .text(client_nonce)
                                 .text(purpose)
                                 .text(body)
                                 .take());
}

std::string server_proof(const std::string& secret, const std::string& server_nonce,
                         const std::string& client_nonce, const std::string& body) {
  return hmac_sha256(
      secret, Builder().text("server").text(client_nonce).text(server_nonce).text(body).take());
}

}  // namespace

Gatekeeper::Gatekeeper(std::string purpose, std::vector<std::string> secrets)
    : purpose_(std::move(purpose)), secrets_(std::move(secrets)), own_nonce_(random_bytes(16)) {}

Frame Gatekeeper::challenge() const { return {kChallenge, 0, Builder().text(own_nonce_).take()}; }

std::string Gatekeeper::check(const Frame& hello) {
  if (hello.type != kHello) throw CommError("a peer spoke before its hello");
  Parser parser(hello.body);
  peer_nonce_ = parser.text();
  const std::string proof = parser.text();
  const std::string purpose = parser.text();
  std::string body = parser.text();
  for (const std::string& secret : secrets_) {
    if (equal_in_constant_time(proof,
                               client_proof(secret, own_nonce_, peer_nonce_, purpose, body))) {
      secret_ = secret;
    }
  }
  if (secret_.empty()) throw CommError("wrong secret");
  if (purpose != purpose_) {
    throw CommError("this port serves '" + purpose_ + "', the peer asked for '" + purpose + "'");
  }
  return body;
}

Frame Gatekeeper::welcome(const std::string& body) const {
  return {kWelcome, 0,
          Builder().text(server_proof(secret_, own_nonce_, peer_nonce_, body)).text(body).take()};
}

Frame Gatekeeper::refusal(const std::string& reason, bool knows_us) {
  return {kRefused, knows_us ? 1U : 0U, Builder().text(reason).take()};
}

Channel connect_with_secret(const Address& address, const std::string& purpose,
                            const std::string& secret, const std::string& body, Deadline deadline,
                            std::string& welcome) {
  const std::string peer = "the server at " + address.text();
  Channel channel(connect_tcp(address, deadline), kMaxWelcome);
  const Frame challenge = receive_one(channel, deadline, peer);
  if (challenge.type != kChallenge) throw CommError(peer + " is not a Tutti server");
  const std::string server_nonce = Parser(challenge.body).text();
  const std::string own_nonce = random_bytes(16);
  const std::string proof = client_proof(secret, server_nonce, own_nonce, purpose, body);
  send_one(channel,
           {kHello, 0, Builder().text(own_nonce).text(proof).text(purpose).text(body).take()},
           deadline, peer);
  const Frame answer = receive_one(channel, deadline, peer);
  Parser parser(answer.body);
  if (answer.type == kRefused) {
    throw RefusedError(peer + " refused us: " + parser.text(), answer.id == 1);
  }
  const std::string their_proof = parser.text();
  welcome = parser.text();
  if (answer.type != kWelcome ||
      !equal_in_constant_time(their_proof,
                              server_proof(secret, server_nonce, own_nonce, welcome))) {
    throw CommError(peer + " does not know our secret");
  }
  return channel;
}

}  // namespace tutti::launch
