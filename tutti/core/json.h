// JSON for manifests, results and logs. Order of keys is kept, so that files compare byte for byte.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tutti {

using Json = nlohmann::ordered_json;

// Throws DataError "WHERE: not valid JSON: ..." ; `where` is a file name or "file:line".
Json parse_json(std::string_view text, const std::string& where);
// Text as a string; bytes that are no UTF-8, which JSON cannot hold, as {"base64": "..."}.
Json bytes_to_json(std::string_view bytes);
// And back; any other value gives its own text.
std::string bytes_from_json(const Json& value);
// One line, UTF-8; bytes that are not UTF-8 become U+FFFD (a worker's output is not ours to trust).
std::string to_json_line(const Json& value);

}  // namespace tutti
