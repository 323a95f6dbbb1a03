// The expression parser alone: any text gives a number or an ArithmeticError.
#include <cstdint>
#include <string_view>

#include "tutti/config/arithmetic.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tutti::config;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    evaluate(text, [](const std::string& key) {
      return Number::of(static_cast<std::int64_t>(key.size()) - 2);
    }).text();
  } catch (const ArithmeticError&) {
    // A refusal is an answer.
  }
  return 0;
}
