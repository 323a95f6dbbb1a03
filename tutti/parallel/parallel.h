// The seeds' API: set_parallel, build_client, get_client, parallel_map, parallel_for, as_completed.
//
//   const auto parallel = set_parallel(config["parallel_gpu"]);     // for this scope
//   auto client = get_client<LargeInstancePlugin>();                // for this scope
//   std::vector<Json> results = parallel_map(inference, range(test_set.size()));
//
// In ESPnet3 set_parallel is a process global and a later stage inherits it silently; here it lives
// as long as the object it returns, and so does a client. Scopes nest and belong to the thread that
// made them. No config means env local with one worker.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/parallel/client.h"
#include "tutti/parallel/registry.h"
#include "tutti/parallel/worker/worker.h"

namespace tutti::parallel {

// The settings in force until it is destroyed.
class [[nodiscard]] ParallelScope {
 public:
  explicit ParallelScope(ParallelSettings settings);
  ~ParallelScope();
  ParallelScope(const ParallelScope&) = delete;
  ParallelScope& operator=(const ParallelScope&) = delete;
  const ParallelSettings& settings() const noexcept { return settings_; }

 private:
  ParallelSettings settings_;
  const ParallelScope* outer_;
};

// Reads any `parallel:`-shaped block. Throws ConfigError with every problem in it.
ParallelScope set_parallel(const config::Node& block);
// The innermost scope's settings, or the default.
ParallelSettings current_parallel();

// A client of one's own, not the current one of any scope.
std::unique_ptr<Client> build_client(const ParallelSettings& settings, ClientOptions options = {});

// The client that parallel_map, parallel_for, as_completed and runners use until it is destroyed.
class [[nodiscard]] ClientScope {
 public:
  explicit ClientScope(std::vector<std::string> plugin_names, ClientOptions options = {});
  ~ClientScope();
  ClientScope(const ClientScope&) = delete;
  ClientScope& operator=(const ClientScope&) = delete;
  Client& client() noexcept { return *client_; }
  const std::vector<std::string>& plugin_names() const noexcept { return plugins_; }

 private:
  std::vector<std::string> plugins_;
  std::unique_ptr<Client> client_;
  ClientScope* outer_;
};

// A pool under the current settings whose workers set up the given plugins.
template <class... Plugins>
ClientScope get_client(ClientOptions options = {}) {
  return ClientScope({Registry::global().name_of(typeid(Plugins))...}, std::move(options));
}
ClientScope* current_client();

// Results in the order of `indices`; null where an item failed under on_error: skip.
std::vector<Json> parallel_map(ItemFunction function, const Indices& indices,
                               const RunOptions& options = {});
// Calls `each` on this thread as items complete.
void parallel_for(ItemFunction function, const Indices& indices,
                  const std::function<void(std::uint64_t index, Json result)>& each,
                  const RunOptions& options = {});

// Pulls results as they complete; leaving early stops the run.
//
//   auto results = as_completed(function, range(n));
//   while (const auto item = results.next()) use(item->index, item->result);
class Completed {
 public:
  struct Item {
    std::uint64_t index = 0;
    bool ok = true;
    Json result;  // or the error's text
  };
  Completed(ItemFunction function, const Indices& indices, const RunOptions& options);
  ~Completed();
  Completed(Completed&&) noexcept;
  // Waits for one; empty: that was all. Throws what the run throws.
  std::optional<Item> next();

 private:
  struct Pump;
  std::unique_ptr<Pump> pump_;
};
inline Completed as_completed(ItemFunction function, const Indices& indices,
                              const RunOptions& options = {}) {
  return Completed(function, indices, options);
}

// An outcome's JSON, from the message or from its file (which is removed).
Json take_result(const Client& client, const Outcome& outcome);

}  // namespace tutti::parallel
