// Providers build a worker's env from config, once per worker; runners run items in it.
//
//   class DecodeProvider : public InferenceProvider {
//    public:
//     using InferenceProvider::InferenceProvider;
//     std::any build_dataset(const config::Node& config) const override {
//       return load_eval_split(config["dataset"]);
//     }
//     std::any build_model(const config::Node& config) const override {
//       return load_model(config["model"]);
//     }
//   };
//   TUTTI_REGISTER_PROVIDER(DecodeProvider);
//
// The driver makes one to say what is wanted (its config and params travel to the workers by
// value); each worker makes its own by the registered name and calls build_env. C++ cannot ship
// closures, so names are what crosses the wire (registry.h).
#pragma once

#include <any>
#include <memory>

#include "tutti/config/node.h"
#include "tutti/core/json.h"
#include "tutti/parallel/env.h"

namespace tutti::parallel {

class EnvironmentProvider {
 public:
  explicit EnvironmentProvider(config::Node config = {}, Json params = Json::object())
      : config_(std::move(config)), params_(std::move(params)) {}
  virtual ~EnvironmentProvider() = default;

  // Runs on the worker, once. What it throws is reported to the driver in its own words.
  virtual void build_env(Env& env) const = 0;
  // Files whose content decides the results (checkpoints): a run does not go on with the results of
  // others.
  virtual std::vector<std::string> model_files() const { return {}; }

  const config::Node& config() const noexcept { return config_; }
  const Json& params() const noexcept { return params_; }

 private:
  config::Node config_;
  Json params_;
};

// The provider of the inference stages: a dataset, a model, and params as keyword arguments.
class InferenceProvider : public EnvironmentProvider {
 public:
  using EnvironmentProvider::EnvironmentProvider;
  // Each returns a std::shared_ptr<T>; runners read it back with env.get<T>("dataset" / "model").
  virtual std::any build_dataset(const config::Node& config) const = 0;
  virtual std::any build_model(const config::Node& config) const = 0;
  void build_env(Env& env) const override {
    env.put_any("dataset", build_dataset(config()));
    env.put_any("model", build_model(config()));
  }
};

// Worker-side set-up by hand: what Dask calls a WorkerPlugin.
//
//   struct LargeInstance : WorkerPlugin {
//     void setup(Env& worker) override { worker.put("model", load_model()); }
//   };
//   TUTTI_REGISTER_PLUGIN(LargeInstance);
class WorkerPlugin {
 public:
  virtual ~WorkerPlugin() = default;
  virtual void setup(Env& worker) = 0;
  virtual void teardown(Env& /*worker*/) {}
};

}  // namespace tutti::parallel
