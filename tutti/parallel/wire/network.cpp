#include "tutti/parallel/wire/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"

namespace tutti::parallel {

std::vector<std::string> addresses_of_interface(const std::string& interface) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) throw_errno("cannot list network interfaces", errno);
  std::vector<std::string> found;
  std::vector<std::string> names;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET ||
        (entry->ifa_flags & IFF_UP) == 0)
      continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr,
                text.data(), text.size());
    names.emplace_back(entry->ifa_name);
    const bool loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    if (interface.empty() ? !loopback : found.empty() && interface == entry->ifa_name)
      found.emplace_back(text.data());
  }
  ::freeifaddrs(list);
  if (!found.empty()) return found;
  if (interface.empty()) return {"127.0.0.1"};  // a machine on its own; workers can only be here
  throw ConfigError("parallel.interface: no interface '" + interface + "' with an IPv4 address",
                    "this machine has " + join(names, ", "));
}

namespace {

// Empty: it took the connection. Else the system's words.
std::string try_connect(const std::string& endpoint, std::chrono::milliseconds limit) {
  const auto colon = endpoint.rfind(':');
  const auto slashes = endpoint.find("//");
  if (colon == std::string::npos || slashes == std::string::npos || slashes + 2 > colon)
    return "not an address";
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::atoi(endpoint.c_str() + colon + 1)));
  const std::string host = endpoint.substr(slashes + 2, colon - slashes - 2);
  if (::inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) return "not an address";
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return std::strerror(errno);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
    return "";
  if (errno != EINPROGRESS) return std::strerror(errno);
  pollfd waiting{fd.get(), POLLOUT, 0};
  if (::poll(&waiting, 1, static_cast<int>(limit.count())) <= 0) return "no answer";
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? "" : std::strerror(error);
}

}  // namespace

std::string first_reachable(const std::vector<std::string>& endpoints,
                            std::chrono::milliseconds limit, std::string& failures) {
  for (const std::string& endpoint : endpoints) {
    const std::string words = try_connect(endpoint, limit);
    if (words.empty()) return endpoint;
    failures += (failures.empty() ? "" : "; ") + endpoint + ": " + words;
  }
  return "";
}

}  // namespace tutti::parallel
