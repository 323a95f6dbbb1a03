// A fuzz target's only promise: any bytes give a value or a tutti::Error, never anything else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tutti/core/error.h"

namespace tutti::fuzz {

template <class Parse>
int run(const std::uint8_t* data, std::size_t size, const Parse& parse) {
  try {
    parse(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const Error&) {
    // Refused with a reason: as it should be.
  }
  return 0;
}

}  // namespace tutti::fuzz
