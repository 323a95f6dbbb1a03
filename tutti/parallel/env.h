// What a worker holds while it runs items: named objects of any type, built once per worker.
//
//   env.put("model", std::make_shared<Model>("exp/model"));
//   Model& model = env.get<Model>("model");
//   int beam = env.param<int>("beam_size", 5);
//
// One item runs at a time on a worker, so objects need no locks.
#pragma once

#include <any>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/core/json.h"

namespace tutti::parallel {

class Env {
 public:
  explicit Env(Json params = Json::object()) : params_(std::move(params)) {}

  template <class T>
  void put(const std::string& name, std::shared_ptr<T> object) {
    objects_[name] = std::any(std::move(object));
  }
  void put_any(const std::string& name, std::any object) { objects_[name] = std::move(object); }
  // Throws ConfigError when nothing of that name and type is there.
  template <class T>
  T& get(const std::string& name) const {
    const auto found = objects_.find(name);
    if (found == objects_.end())
      throw ConfigError("the worker's env has no '" + name + "'",
                        "let the provider or a plugin put it there");
    const auto* object = std::any_cast<std::shared_ptr<T>>(&found->second);
    if (object == nullptr || *object == nullptr)
      throw ConfigError("'" + name + "' in the worker's env has another type");
    return **object;
  }
  bool has(const std::string& name) const { return objects_.contains(name); }

  const Json& params() const noexcept { return params_; }
  template <class T>
  T param(const std::string& name, T fallback) const {
    return params_.contains(name) ? params_.at(name).template get<T>() : fallback;
  }

 private:
  std::map<std::string, std::any> objects_;
  Json params_;
};

}  // namespace tutti::parallel
