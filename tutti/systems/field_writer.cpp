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

void write_recognition_files(const fs::path& output_dir, const std::string& id_key,
                             const std::vector<Json>& results) {
  std::map<fs::path, std::string> files;  // relative to output_dir
  const auto add = [&](std::size_t rank, const std::string& id, const Json& text,
                       const Json& hypothesis) {
    const fs::path folder = fmt::format("{}best_recog", rank);
    std::vector<std::string> ids;
    for (const Json& number : hypothesis.at("token_ids")) ids.push_back(number.dump());
    const auto line = [&](const char* file, const std::string& value) {
      files[folder / file] += id + (value.empty() ? "" : " " + value) + "\n";
    };
    line("text", one_line(text));
    line("token", join(hypothesis.at("tokens").get<std::vector<std::string>>(), " "));
    line("token_int", join(ids, " "));
    const Json& score = hypothesis.at("score");
    line("score", score.is_null() ? "" : score.dump());
  };
  for (const Json& result : results) {
    if (!result.is_object() || !result.contains("tokens") || !result.contains("token_ids"))
      continue;
    const std::string id = result.at(id_key);
    if (!result.contains("nbest")) add(1, id, result.at("hyp"), result);
    const Json alternatives = result.value("nbest", Json::array());
    for (std::size_t rank = 0; rank < alternatives.size(); ++rank)
      add(rank + 1, id, alternatives[rank].at("text"), alternatives[rank]);
  }
  for (const auto& [file, text] : files) {
    make_folders((output_dir / file).parent_path());
    write_file_atomic(output_dir / file, text);
  }
}

}  // namespace tutti::systems
