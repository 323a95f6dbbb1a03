// Checks whole config files: keys, types, names, and what must agree between blocks. Takes no GPU,
// submits no job, opens no data.
//
//   FileChecker checker;
//   checker.block("parallel", [](const Node& block, const Catalogue&, Problems& problems) {
//     parallel::parse_parallel(block, problems);
//   });
//   Problems problems;
//   Node config = load_checked({.files = {"conf/training.yaml"}}, {}, checker, problems);
//   problems.throw_if_any();   // all of them, sorted by line
//
// A top-level key no schema knows is a variable when some ${...} refers to it, and an error with a
// suggestion otherwise.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tutti/config/gpu_count.h"
#include "tutti/config/load.h"
#include "tutti/config/registry.h"
#include "tutti/config/schemas/standard.h"

namespace tutti::config {

class PluginRegistry;  // plugin.h

enum class FileKind { kTraining, kInference, kMetrics, kPublication, kDemo, kParallel };

const char* kind_name(FileKind kind);
std::optional<FileKind> kind_from_name(const std::string& name);
// From the name of the first file, else from the keys; empty when neither tells.
std::optional<FileKind> detect_kind(const std::vector<std::filesystem::path>& files,
                                    const Node& root);

// The top-level keys that ${...} anywhere in an unresolved tree refer to.
std::set<std::string> referenced_keys(const Node& merged);

class FileChecker {
 public:
  using BlockCheck =
      std::function<void(const Node& block, const Catalogue& catalogue, Problems& problems)>;

  explicit FileChecker(Catalogue catalogue = standard_catalogue())
      : catalogue_(std::move(catalogue)) {}
  Catalogue& catalogue() noexcept { return catalogue_; }
  const Catalogue& catalogue() const noexcept { return catalogue_; }

  // A room's own check of a top-level block; it replaces the one built in. "parallel" also serves
  // every block named parallel_<something>.
  void block(const std::string& key, BlockCheck check) { blocks_[key] = std::move(check); }
  // What takes several blocks to see, for files of one kind.
  void rule(FileKind kind, BlockCheck check) { rules_.emplace_back(kind, std::move(check)); }
  // The dataset builders that a file's entries mean, each with an entry that does.
  using Corpora = std::vector<std::pair<std::string, Node>>;
  void set_corpora(std::function<Corpora(const Node& root)> find) { corpora_ = std::move(find); }
  Corpora corpora_of(const Node& root) const { return corpora_ ? corpora_(root) : Corpora{}; }
  // What data_src may name beside them.
  void set_file_sources(std::vector<std::string> names) { file_sources_ = std::move(names); }
  // Whether this program has what the builders that come with Tutti are made of: then they are loaded, and the keys of
  // `create_dataset:` checked.
  void set_loads_corpora(bool loads) noexcept { loads_corpora_ = loads; }
  bool loads_corpora() const noexcept { return loads_corpora_; }
  // Where the code of plugins goes, in this program.
  void set_offers(std::function<void(PluginRegistry& registry)> offer) {
    offer_ = std::move(offer);
  }
  void offer(PluginRegistry& registry) const {
    if (offer_) offer_(registry);
  }
  void set_gpu_counter(GpuCounter counter) { count_gpus_ = std::move(counter); }

  // Without a kind, keys of any kind of file are accepted. `variables`: see referenced_keys.
  void check(std::optional<FileKind> kind, const Node& root, const std::set<std::string>& variables,
             Problems& problems) const;

 private:
  void check_block(const std::string& key, const Node& block, Problems& problems) const;
  void check_parallel_block(const Node& block, Problems& problems) const;
  void check_corpora(const Node& root, Problems& problems) const;

  Catalogue catalogue_;
  std::map<std::string, BlockCheck> blocks_;
  std::vector<std::pair<FileKind, BlockCheck>> rules_;
  std::function<Corpora(const Node& root)> corpora_;
  std::vector<std::string> file_sources_;
  bool loads_corpora_ = false;
  std::function<void(PluginRegistry& registry)> offer_;
  GpuCounter count_gpus_ = count_visible_gpus;
};

// Loads, lets `plugins:` register, resolves and checks. The kind is detected unless given; `parallel` chooses a named
// block (config_files.h).
Node load_checked(const LoadOptions& options, std::optional<FileKind> kind, FileChecker& checker,
                  Problems& problems, const std::string& parallel = {});

}  // namespace tutti::config
