// The names and values that tell a worker what to build and what to run. Internal to the room.
#pragma once

#include <string>
#include <vector>

#include "tutti/core/json.h"

namespace tutti::parallel {

struct JobSpec {
  std::string provider;  // empty: none
  std::string runner;    // runner or function, not both
  std::string function;
  std::vector<std::string> plugins;    // WorkerPlugin names
  std::vector<std::string> libraries;  // to dlopen first
  Json config = nullptr;
  Json params = Json::object();
  std::uint64_t batch_size = 1;
  double item_timeout_s = 0;
  std::string finisher;  // empty: none; no part of what makes two runs the same
  Json finisher_params = nullptr;

  Json to_json() const;
  static JobSpec from_json(const Json& json);
  // Equal for two jobs that can share an env.
  std::string env_fingerprint() const;
};

}  // namespace tutti::parallel
