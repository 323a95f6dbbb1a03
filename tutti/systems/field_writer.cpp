#include "tutti/systems/field_writer.h"

#include <fmt/format.h>

#include <functional>
#include <map>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"
#include "tutti/data/io/npy.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> keys_of(const Json& result) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : result.items()) keys.push_back(key);
  return keys;
}

std::string one_line(std::string text) {
  for (char& c : text)
    if (c == '\n' || c == '\r') c = ' ';
  return text;
}

std::string file_name(std::string id) {
  for (char& c : id)
    if (c == '/') c = '_';
  return id;
}

// Rectangular nested lists of numbers.
data::Array to_array(const Json& value, const std::string& field) {
  std::vector<std::int64_t> shape;
  for (const Json* level = &value; level->is_array(); level = &level->front()) {
    shape.push_back(static_cast<std::int64_t>(level->size()));
    if (level->empty()) break;
  }
  data::Array array = data::Array::make(data::DType::kFloat32, shape);
  float* out = array.data<float>();
  const float* const end = out + array.size();
  const std::function<void(const Json&)> copy = [&](const Json& part) {
    if (part.is_array()) {
      for (const Json& inner : part) copy(inner);
    } else {
      if (!part.is_number() || out == end)
        throw DataError(
            fmt::format("output_artifacts: {} is no rectangular array of numbers", field),
            "use type: json");
      *out++ = part.get<float>();
    }
  };
  copy(value);
  return array;
}

std::string scp_value(const FieldWriterOptions& options, const std::string& field,
                      const std::string& id, const Json& value) {
  if (value.is_string()) return one_line(value);
  if (!value.is_structured()) return value.dump();
  const config::Node type = options.artifacts[field]["type"];
  const bool as_npy = type.is_scalar() && type.raw() == "npy";
  const fs::path file = options.output_dir / field / (file_name(id) + (as_npy ? ".npy" : ".json"));
  make_folders(file.parent_path());
  if (as_npy)
    data::write_npy(file, to_array(value, field));
  else
    write_file_atomic(file, value.dump() + "\n");
  return file.string();
}

}  // namespace

void write_fields(const FieldWriterOptions& options, const std::vector<Json>& results) {
  std::vector<std::string> fields = options.fields;
  std::map<std::string, std::string> scp;
  for (const Json& result : results) {
    if (!result.is_object()) continue;
    if (fields.empty())
      for (const auto& key : keys_of(result))
        if (key != options.id_key && key != "seconds") fields.push_back(key);
    const auto id = result.find(options.id_key);
    if (id == result.end() || !id->is_string())
      throw ConfigError(fmt::format("idx_key: the results have no '{}'", options.id_key),
                        fmt::format("they have {}", join(keys_of(result), ", ")));
    for (const auto& field : fields) {
      const auto value = result.find(field);
      if (value == result.end())
        throw ConfigError(fmt::format("output_keys: the results have no '{}'", field),
                          fmt::format("they have {}", join(keys_of(result), ", ")));
      scp[field] += id->get<std::string>() + " " +
                    scp_value(options, field, id->get<std::string>(), *value) + "\n";
    }
  }
  for (const auto& [field, text] : scp)
    write_file_atomic(options.output_dir / (field + ".scp"), text);
}

}  // namespace tutti::systems
