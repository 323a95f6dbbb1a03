#include "tutti/core/json.h"

#include "tutti/core/error.h"
#include "tutti/core/text.h"

namespace tutti {

Json parse_json(std::string_view text, const std::string& where) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& e) {
    throw DataError(where + ": not valid JSON: " + e.what());
  }
}

Json bytes_to_json(std::string_view bytes) {
  if (is_utf8(bytes)) return Json(bytes);
  Json marked = Json::object();
  marked["base64"] = base64_encode(bytes);
  return marked;
}

std::string bytes_from_json(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.size() == 1 && value.contains("base64"))
    return base64_decode(value["base64"].get<std::string>());
  return to_json_line(value);
}

std::string to_json_line(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace tutti
