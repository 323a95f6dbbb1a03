#include "tutti/core/json.h"

#include "tutti/core/error.h"

namespace tutti {

Json parse_json(std::string_view text, const std::string& where) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& e) {
    throw DataError(where + ": not valid JSON: " + e.what());
  }
}

std::string to_json_line(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tutti
