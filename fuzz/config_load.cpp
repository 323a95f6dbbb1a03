// YAML, interpolation and overrides together: whatever the bytes, an answer or a ConfigError.
//
// Lines that begin with '@' are overrides; the rest is the YAML. What loads is also written out and
// loaded again, and must be the same tree.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/config/load.h"
#include "tutti/config/merge.h"
#include "tutti/core/error.h"
#include "tutti/core/text.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tutti::config;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  std::string yaml;
  std::vector<std::string> overrides;
  for (const auto& line : tutti::split(input, '\n')) {
    if (line.starts_with('@'))
      overrides.push_back(line.substr(1));
    else
      yaml += line + "\n";
  }
  // No resolver may touch the machine: files and environment are not what is tested here.
  Resolvers resolvers;
  resolvers.add("echo", [](const ResolverCall& call) { return text_value(call.argument(0)); });
  resolvers.add("self_name", [](const ResolverCall& call) { return text_value(call.self_name); });
  Problems problems;
  ValuePtr root = parse_yaml(yaml, "fuzz.yaml", problems).value();
  if (overrides.size() < 20)
    for (const auto& text : overrides) root = apply_override(root, text, problems);
  const Node resolved = resolve(Node(merge(root, root)), resolvers, "fuzz", problems);
  problems.describe();
  if (!problems.empty()) return 0;
  const std::string text = to_yaml(resolved);
  Problems again;
  const Node reloaded = parse_yaml(text, "again.yaml", again);
  const auto dump = [](const Node& node) {
    return to_json(node).dump(-1, ' ', false, tutti::Json::error_handler_t::replace);
  };
  // Bytes that are not text have no spelling in YAML; everything else must survive.
  const bool is_text = text.find("\xef\xbf\xbd") == std::string::npos;
  if (is_text && (!again.empty() || dump(reloaded) != dump(resolved))) std::abort();
  return 0;
}
