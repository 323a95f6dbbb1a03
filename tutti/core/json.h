// JSON for manifests, results and logs. Order of keys is kept, so that files compare byte for byte.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tutti {

using Json = nlohmann::ordered_json;

// Throws DataError "WHERE: not valid JSON: ..." ; `where` is a file name or "file:line".
Json parse_json(std::string_view text, const std::string& where);
// One line, UTF-8; bytes that are not UTF-8 become U+FFFD (a worker's output is not ours to trust).
std::string to_json_line(const Json& value);

}  // namespace tutti
