// Code of a plugin or of a model file: whatever it throws is its author's to mend, and no bug of ours.
//
//   users_code("callback stop_below", [&] { inner->on_step(moment); });
//
// becomes "data error: callback stop_below: map::at", exit 3. Errors of our own types pass as they
// are: they say already whose they are. So does memory that ran out.
#pragma once

#include <string>

namespace tutti {

// The words of the exception being handled, without torch's backtrace; of what is no exception its
// type. Call inside a catch block only.
std::string words_of_exception();
// Throws what is being handled as a DataError of `who`. Call inside a catch block only.
[[noreturn]] void rethrow_as_users(const std::string& who);

template <class Function>
decltype(auto) users_code(const std::string& who, Function&& function) {
  try {
    return function();
  } catch (...) {  // anything may be thrown
    rethrow_as_users(who);
  }
}

}  // namespace tutti
