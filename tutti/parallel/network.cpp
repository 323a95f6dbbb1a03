#include "tutti/parallel/network.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti::parallel {

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string address_of_interface(const std::string& interface) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) throw_errno("cannot list network interfaces", errno);
  std::string found;
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
    if (found.empty() && (interface.empty() ? !loopback : interface == entry->ifa_name))
      found = text.data();
  }
  ::freeifaddrs(list);
  if (!found.empty()) return found;
  if (interface.empty()) return "127.0.0.1";  // a machine on its own; workers can only be here
  throw ConfigError("parallel.interface: no interface '" + interface + "' with an IPv4 address",
                    "this machine has " + join(names, ", "));
}

}  // namespace tutti::parallel
