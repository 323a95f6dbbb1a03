#include "tutti/config/arithmetic.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "tutti/config/limits.h"
#include "tutti/core/text.h"

namespace tutti::config {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_char(char c) { return is_name_start(c) || is_digit(c); }

Number checked(double value) {
  if (!std::isfinite(value)) throw ArithmeticError("the result is not a finite number");
  return Number::of(value);
}

enum class Operator { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo };

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? quotient - 1 : quotient;
}

Number apply_whole(Operator op, std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  bool overflow = false;
  // INT64_MIN / -1 is the one quotient that does not fit.
  const bool bad_quotient = b == -1 && a == INT64_MIN;
  switch (op) {
    case Operator::kAdd:
      overflow = __builtin_add_overflow(a, b, &out);
      break;
    case Operator::kSubtract:
      overflow = __builtin_sub_overflow(a, b, &out);
      break;
    case Operator::kMultiply:
      overflow = __builtin_mul_overflow(a, b, &out);
      break;
    case Operator::kDivide:
      if (bad_quotient)
        overflow = true;
      else if (a % b == 0)
        out = a / b;
      else
        return checked(static_cast<double>(a) / static_cast<double>(b));
      break;
    case Operator::kFloorDivide:
      if (bad_quotient)
        overflow = true;
      else
        out = floor_divide(a, b);
      break;
    case Operator::kModulo:
      out = bad_quotient ? 0 : a - floor_divide(a, b) * b;
      break;
  }
  if (overflow) throw ArithmeticError("the result does not fit into 64 bits");
  return Number::of(out);
}

Number apply(Operator op, const Number& a, const Number& b) {
  const bool divides =
      op == Operator::kDivide || op == Operator::kFloorDivide || op == Operator::kModulo;
  if (divides && b.real == 0) throw ArithmeticError("division by zero");
  if (a.is_whole && b.is_whole) return apply_whole(op, a.whole, b.whole);
  switch (op) {
    case Operator::kAdd:
      return checked(a.real + b.real);
    case Operator::kSubtract:
      return checked(a.real - b.real);
    case Operator::kMultiply:
      return checked(a.real * b.real);
    case Operator::kDivide:
      return checked(a.real / b.real);
    case Operator::kFloorDivide:
      return checked(std::floor(a.real / b.real));
    case Operator::kModulo:
      return checked(a.real - std::floor(a.real / b.real) * b.real);
  }
  throw ArithmeticError("unknown operator");
}

// Recursive descent: sum := product (+|- product)*; product := unary (*|/|//|% unary)*.
class Parser {
 public:
  Parser(std::string_view text, const std::function<Number(const std::string&)>& lookup)
      : text_(text), lookup_(lookup) {}

  Number parse() {
    const Number value = sum();
    skip_space();
    if (at_ < text_.size()) fail("expected an operator");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& what) {
    const auto rest = trim(text_.substr(at_));
    throw ArithmeticError(
        what + (rest.empty() ? " at the end" : fmt::format(" at '{}'", rest.substr(0, 40))));
  }

  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n'))
      ++at_;
  }

  bool take(std::string_view token) {
    skip_space();
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }

  Number sum() {
    Number value = product();
    for (;;) {
      if (take("+"))
        value = apply(Operator::kAdd, value, product());
      else if (take("-"))
        value = apply(Operator::kSubtract, value, product());
      else
        return value;
    }
  }

  Number product() {
    Number value = unary();
    for (;;) {
      if (take("*"))
        value = apply(Operator::kMultiply, value, unary());
      else if (take("//"))
        value = apply(Operator::kFloorDivide, value, unary());
      else if (take("/"))
        value = apply(Operator::kDivide, value, unary());
      else if (take("%"))
        value = apply(Operator::kModulo, value, unary());
      else
        return value;
    }
  }

  Number unary() {
    if (++depth_ > kMaxDepth) throw ArithmeticError("the expression is nested too deep");
    Number value;
    if (take("-"))
      value = apply(Operator::kSubtract, Number::of(std::int64_t{0}), unary());
    else if (take("+"))
      value = unary();
    else
      value = primary();
    --depth_;
    return value;
  }

  Number primary() {
    if (take("(")) {
      const Number value = sum();
      if (!take(")")) fail("expected ')'");
      return value;
    }
    skip_space();
    if (at_ >= text_.size()) fail("expected a number or a key");
    const char c = text_[at_];
    const char next = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    if (is_digit(c) || (c == '.' && is_digit(next))) return literal();
    if (is_name_start(c) || c == '.') return name_or_call();
    fail("expected a number or a key");
  }

  Number literal() {
    const char* begin = text_.data() + at_;
    const char* end = text_.data() + text_.size();
    std::int64_t whole = 0;
    const auto [whole_end, whole_status] = std::from_chars(begin, end, whole);
    double real = 0;
    const auto [real_end, real_status] = std::from_chars(begin, end, real);
    if (real_status != std::errc{}) fail("the number is out of range");
    at_ += static_cast<std::size_t>(real_end - begin);
    if (whole_status == std::errc{} && whole_end == real_end) return Number::of(whole);
    return checked(real);
  }

  Number name_or_call() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && (is_name_char(text_[at_]) || text_[at_] == '.' ||
                                  text_[at_] == '[' || text_[at_] == ']'))
      ++at_;
    const std::string name(text_.substr(begin, at_ - begin));
    skip_space();
    if (at_ < text_.size() && text_[at_] == '(') return call(name);
    return lookup_(name);
  }

  Number call(const std::string& name) {
    if (name != "min" && name != "max")
      throw ArithmeticError(fmt::format("unknown function '{}', known are min and max", name));
    take("(");
    Number best = sum();
    while (take(",")) {
      const Number other = sum();
      const bool better = name == "min" ? other.real < best.real : other.real > best.real;
      if (better) best = other;
    }
    if (!take(")")) fail("expected ',' or ')'");
    return best;
  }

  std::string_view text_;
  const std::function<Number(const std::string&)>& lookup_;
  std::size_t at_ = 0;
  std::size_t depth_ = 0;
};

}  // namespace

std::string Number::text() const {
  if (is_whole) return std::to_string(whole);
  return fmt::format("{}", real);
}

Number evaluate(std::string_view text,
                const std::function<Number(const std::string& key)>& lookup) {
  return Parser(text, lookup).parse();
}

bool looks_like_arithmetic(std::string_view text) {
  return text.find_first_of("+-*/%() ,") != std::string_view::npos ||
         (!text.empty() && is_digit(text[0]));
}

}  // namespace tutti::config
