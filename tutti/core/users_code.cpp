#include "tutti/core/users_code.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <typeinfo>

#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti {

std::string words_of_exception() {
  try {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return std::string(trim(text.substr(0, text.find("\nException raised from "))));
  } catch (...) {  // `throw 5`
    const std::type_info* type = abi::__cxa_current_exception_type();
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> name(
        type ? abi::__cxa_demangle(type->name(), nullptr, nullptr, &status) : nullptr, std::free);
    return std::string("it threw ") + (name ? name.get() : "something") + ", which is no exception";
  }
}

void rethrow_as_users(const std::string& who) {
  try {
    throw;
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (...) {
    throw DataError(who + ": " + words_of_exception(), "the mistake is in the plugin's own code");
  }
}

}  // namespace tutti
