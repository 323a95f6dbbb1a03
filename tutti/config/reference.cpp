#include "tutti/config/reference.h"

#include <fmt/format.h>

#include "tutti/config/schemas/data.h"
#include "tutti/config/schemas/files.h"
#include "tutti/core/text.h"

namespace tutti::config {
namespace {

// A `|` would end the cell.
std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

std::string limits(const Rule& rule) {
  if (!rule.one_of.empty()) {
    std::vector<std::string> words;
    for (const auto& word : rule.one_of) words.push_back(word.empty() ? "\"\"" : word);
    return "one of " + join(words, ", ");
  }
  std::string text;
  if (rule.min && rule.max)
    text = fmt::format("{} to {}", format_number(*rule.min), format_number(*rule.max));
  else if (rule.min)
    text = format_number(*rule.min) + " or more";
  else if (rule.max)
    text = "at most " + format_number(*rule.max);
  if (!rule.unit.empty()) text += (text.empty() ? "" : " ") + rule.unit;
  return text;
}

std::string table(const SchemaInfo& info) {
  if (info.fields.empty()) return "No settings.\n";
  std::string out = "| key | type | default | limits | meaning |\n|---|---|---|---|---|\n";
  for (const FieldInfo& field : info.fields) {
    const std::string value = field.rule.required            ? "required"
                              : field.default_text == "\"\"" ? ""
                                                             : "`" + field.default_text + "`";
    out += fmt::format("| `{}` | {} | {} | {} | {} |\n", field.key, cell(field.type), cell(value),
                       cell(limits(field.rule)), cell(field.doc));
  }
  if (!info.refused.empty()) out += "\nKnown elsewhere, not here:\n\n";
  for (const auto& [key, instead] : info.refused) out += fmt::format("* `{}`: {}\n", key, instead);
  return out;
}

std::string section(const std::string& title, const SchemaInfo& info) {
  return fmt::format("## {}\n\n{}\n\n{}\n", title, info.doc, table(info));
}

}  // namespace

std::string reference_markdown(const Catalogue& catalogue,
                               const std::vector<SchemaInfo>& other_rooms) {
  std::string out =
      "# Config reference\n\n"
      "Made by `tutti config reference`; do not edit. How files are found, merged and resolved is "
      "in\n"
      "[config.md](config.md). Keys no table names are errors, unless a `${...}` refers to "
      "them.\n\n";
  out += section("training.yaml", training_schema().info());
  out += section("dataset", dataset_schema().info());
  out += section("dataset entry", dataset_entry_schema().info());
  out += section("tokenizer", tokenizer_schema().info());
  for (const SchemaInfo& info : other_rooms) out += section(info.name, info);
  out += section("inference.yaml", inference_schema().info());
  out += section("metrics.yaml", metrics_schema().info());
  out += section("publication.yaml", publication_schema().info());
  out += section("demo.yaml", demo_schema().info());
  out +=
      "# Components\n\nWhat a `_target_` may name. Our own name comes first; the names of other "
      "projects, or their last part alone (`CSVLogger`), mean the same. A dataset builder is named "
      "by `data_src`, and its keys stand in `create_dataset`.\n\n";
  for (const std::string& group : catalogue.groups()) {
    out += fmt::format("## {}\n\n", group);
    for (const Component* component : catalogue.components(group)) {
      out += fmt::format("### {}: {}\n\n{}\n\n", group, component->name, component->info.doc);
      if (!component->aliases.empty()) {
        std::vector<std::string> names;
        for (const auto& alias : component->aliases) names.push_back("`" + alias + "`");
        out += "Also " + join(names, ", ") + ".\n\n";
      }
      out += table(component->info) + "\n";
    }
  }
  out.pop_back();
  return out;
}

}  // namespace tutti::config
