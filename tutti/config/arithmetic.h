// The arithmetic inside `${num_nodes * num_device}`: + - * / // % ( ) min max over numbers and
// keys.
//
// Whole numbers stay whole (64 bits, overflow is an error); `/` gives a whole number when it
// divides evenly and a fraction otherwise, `//` and `%` round towards minus infinity as in Python.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tutti::config {

struct Number {
  bool is_whole = true;
  std::int64_t whole = 0;
  double real = 0;

  static Number of(std::int64_t value) { return {true, value, static_cast<double>(value)}; }
  static Number of(double value) { return {false, 0, value}; }
  std::string text() const;
};

// "division by zero", "expected a number at '* 3'".
class ArithmeticError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// `lookup` turns a key ("a.b", ".sibling", "a[0]") into a number, or throws.
Number evaluate(std::string_view text, const std::function<Number(const std::string& key)>& lookup);

// Whether the text has anything but a key in it.
bool looks_like_arithmetic(std::string_view text);

}  // namespace tutti::config
