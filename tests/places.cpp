#include "tests/places.h"

namespace tutti {
namespace {

std::string under(const char* folder, std::string_view name) {
  return name.empty() ? folder : std::string(folder) + "/" + std::string(name);
}

}  // namespace

std::string in_bin(std::string_view name) { return under(TUTTI_BIN_DIR, name); }
std::string in_source(std::string_view name) { return under(TUTTI_SOURCE_DIR, name); }

}  // namespace tutti
