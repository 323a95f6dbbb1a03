#include "tutti/parallel/wire/job_spec.h"

#include <fmt/format.h>

#include "tutti/core/random.h"

namespace tutti::parallel {

Json JobSpec::to_json() const {
  Json json;
  json["provider"] = provider;
  json["runner"] = runner;
  json["function"] = function;
  json["plugins"] = plugins;
  json["libraries"] = libraries;
  json["config"] = config;
  json["params"] = params;
  json["batch_size"] = batch_size;
  json["item_timeout"] = item_timeout_s;
  json["finisher"] = finisher;
  json["finisher_params"] = finisher_params;
  return json;
}

JobSpec JobSpec::from_json(const Json& json) {
  JobSpec spec;
  json.at("provider").get_to(spec.provider);
  json.at("runner").get_to(spec.runner);
  json.at("function").get_to(spec.function);
  json.at("plugins").get_to(spec.plugins);
  json.at("libraries").get_to(spec.libraries);
  spec.config = json.at("config");
  spec.params = json.at("params");
  json.at("batch_size").get_to(spec.batch_size);
  json.at("item_timeout").get_to(spec.item_timeout_s);
  json.at("finisher").get_to(spec.finisher);
  spec.finisher_params = json.at("finisher_params");
  return spec;
}

std::string JobSpec::env_fingerprint() const {
  const Json parts = {provider, plugins, libraries, config, params};
  return fmt::format("{:016x}", hash64(parts.dump()));
}

}  // namespace tutti::parallel
