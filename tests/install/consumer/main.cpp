#include <tutti/config/load.h>

int main() {
  const auto config = tutti::config::parse_yaml("a: {b: 3}", "inline");
  return config["a"]["b"].as<int>() == 3 ? 0 : 1;
}
