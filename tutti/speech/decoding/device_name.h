// Names of devices, for the check of a config and for the run alike. Torch-free.
#pragma once

#include <optional>
#include <string>

namespace tutti::speech {

// auto, cpu, cuda or cuda:N; else what is wrong with it.
inline std::optional<std::string> device_mistake(const std::string& name) {
  const std::string number = name.starts_with("cuda:") ? name.substr(5) : "0";
  const bool is_number = !number.empty() && number.size() <= 2 &&
                         number.find_first_not_of("0123456789") == std::string::npos;
  if (name == "auto" || name == "cpu" || name == "cuda" || (name.starts_with("cuda:") && is_number))
    return {};
  return "got '" + name + "', expected auto, cpu, cuda or cuda:N";
}

}  // namespace tutti::speech
