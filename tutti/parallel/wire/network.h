// Addresses of this machine. Internal to the room.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace tutti::parallel {

// The IPv4 address of an interface ("ib0"); of none in particular: those of all that are up and not
// loopback, for a login node may have several networks. Throws ConfigError with the interfaces
// there are.
std::vector<std::string> addresses_of_interface(const std::string& interface);

// The first of `endpoints` ("tcp://10.0.0.7:40123") that takes a connection; each is given
// `limit`. `failures` says what became of the ones before it. Empty: none does.
std::string first_reachable(const std::vector<std::string>& endpoints,
                            std::chrono::milliseconds limit, std::string& failures);

}  // namespace tutti::parallel
