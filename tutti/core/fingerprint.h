// What decides an output: values and the content of files, by name. Where the work was done, by how
// many, when and by whom never belongs in one.
//
//   Fingerprint inputs;
//   inputs.add("frontend", frontend_json, {{"recipe_dir", "/data/me/recipe"}});
//   inputs.add_file("weights", exp_dir / "valid.acc.ave.safetensors");
//   for (const std::string& change : inputs.changes_since(record)) log::info("{}", change);
//
// Two equal fingerprints mean that the output need not be made again. Paths inside a place (the
// recipe's folder, ...) are kept relative to it, so a folder that was moved or copied to another
// machine is still the same. Files count by their bytes, never by their time. Why not a hash alone:
// people want to read what changed. A value type.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/core/json.h"

namespace tutti {

// Named folders: "/data/me/recipe/conf/a.yaml" is kept as "${recipe_dir}/conf/a.yaml".
using Places = std::vector<std::pair<std::string, std::filesystem::path>>;

class Fingerprint {
 public:
  Fingerprint() = default;
  // What json() gave, or null for one that was never written.
  explicit Fingerprint(Json json) : json_(std::move(json)) {}

  // The order of a map's keys does not count.
  Fingerprint& add(const std::string& name, const Json& value, const Places& places = {});
  // By content. A file that is not there is "missing": the one who needs it will say so better.
  Fingerprint& add_file(const std::string& name, const std::filesystem::path& file);

  const Json& json() const noexcept { return json_; }
  bool empty() const noexcept { return json_.empty(); }
  std::uint64_t hash() const;
  // "beam_size: was 5, is 8" or "weights: other content", one per difference, at most `limit`.
  std::vector<std::string> changes_since(const Fingerprint& before, std::size_t limit = 10) const;
  friend bool operator==(const Fingerprint& a, const Fingerprint& b) { return a.json_ == b.json_; }

 private:
  Json json_ = Json::object();
};

// Size and checksum of a file's bytes, as a fingerprint keeps them; "missing" when it is not there.
// Throws IoError when it is there and cannot be read.
std::string content_mark(const std::filesystem::path& file);

}  // namespace tutti
