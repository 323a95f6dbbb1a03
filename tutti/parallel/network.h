// Names and addresses of this machine. Internal to the room.
#pragma once

#include <string>

namespace tutti::parallel {

std::string host_name();
// The IPv4 address of an interface ("ib0"); empty: the first one that is up and not loopback.
// Throws ConfigError with the interfaces there are.
std::string address_of_interface(const std::string& interface);

}  // namespace tutti::parallel
