// ESPnet's miniature of CMU's AN4: a handful of SPHERE files with their transcriptions.
#include <fmt/format.h>

#include <algorithm>

#include "tutti/config/plugin.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"
#include "tutti/systems/builders/archives.h"

namespace tutti::recipes {
namespace {

using systems::BuildContext;
using systems::manifest_path;
using systems::write_manifest;

namespace fs = std::filesystem;

fs::path find_corpus(const fs::path& source) {
  for (const auto& entry : fs::recursive_directory_iterator(source))
    if (entry.is_directory() && fs::exists(entry.path() / "etc" / "an4_train.transcription"))
      return entry.path();
  if (fs::exists(source / "etc" / "an4_train.transcription")) return source;
  throw DataError(source.string() + ": no an4 folder with etc/an4_train.transcription in it");
}

struct MiniAn4Settings {
  std::string source;
  std::string source_dir;
  std::string recipe_dir;
  std::size_t dev_size = 1;
};

class MiniAn4Builder final : public systems::DatasetBuilder {
 public:
  explicit MiniAn4Builder(MiniAn4Settings settings) : settings_(std::move(settings)) {}
  std::vector<std::string> splits() const override { return {"train", "valid", "test"}; }

  void build(const BuildContext& context) const override {
    make_folders(context.data_dir);
    const fs::path corpus = find_corpus(systems::unpacked_source(
        context, settings_.source.empty() ? settings_.source_dir : settings_.source,
        "put downloads.tar.gz of ESPnet's recipe egs2/mini_an4/asr1 (or mini_an4.tar.gz) beside "
        "conf/, or name it there",
        {"downloads", "downloads.tar.gz", "mini_an4.tar.gz",
         "../../../shared/data/mini_an4.tar.gz"}));
    // The corpus has no validation set of its own: the first utterance is it, as in ESPnet3's
    // recipe.
    auto train = read_split(context, corpus, "train");
    const std::size_t num_valid = settings_.dev_size;
    if (train.size() <= num_valid)
      throw DataError(fmt::format("{} training utterances, expected more than dev_size = {}",
                                  train.size(), num_valid));
    const auto middle = train.begin() + static_cast<std::ptrdiff_t>(num_valid);
    write_manifest(manifest_path(context.data_dir, "valid"), {train.begin(), middle});
    write_manifest(manifest_path(context.data_dir, "test"), read_split(context, corpus, "test"));
    write_manifest(manifest_path(context.data_dir, "train"), {middle, train.end()});
  }

 private:
  // Lines are "<s> TEXT </s> (an251-fash-b)"; the folder of an utterance is the middle of its name.
  static std::vector<Json> read_split(const BuildContext& context, const fs::path& corpus,
                                      const std::string& split_name) {
    const fs::path file = corpus / "etc" / fmt::format("an4_{}.transcription", split_name);
    const std::string folder = split_name == "train" ? "an4_clstk" : "an4test_clstk";
    std::vector<Json> utterances;
    int line_number = 0;
    for (const auto& line : split(read_file(file), '\n')) {
      ++line_number;
      if (trim(line).empty()) continue;
      const auto open = line.rfind('(');
      const auto close = line.rfind(')');
      if (open == std::string::npos || close == std::string::npos || close < open)
        throw DataError(
            fmt::format("{}:{}: expected TEXT (id), got '{}'", file.string(), line_number, line));
      const std::string id = line.substr(open + 1, close - open - 1);
      std::vector<std::string> words;
      for (const auto& word : split_words(std::string_view(line).substr(0, open)))
        if (word != "<s>" && word != "</s>") words.push_back(word);
      const auto parts = split(id, '-');
      if (parts.size() != 3)
        throw DataError(fmt::format("{}:{}: expected an id like an251-fash-b, got '{}'",
                                    file.string(), line_number, id));
      const std::string& speaker = parts[1];
      const fs::path audio = corpus / "wav" / folder / speaker / (id + ".sph");
      if (!fs::exists(audio)) continue;  // the miniature keeps only some of the utterances it lists
      utterances.push_back({{"id", fmt::format("{}-{}-{}", speaker, parts[0], parts[2])},
                            {"audio", fs::relative(audio, context.data_dir).string()},
                            {"text", join(words, " ")},
                            {"speaker", speaker}});
    }
    if (utterances.empty()) throw DataError(file.string() + ": none of its utterances has audio");
    std::sort(utterances.begin(), utterances.end(),
              [](const Json& a, const Json& b) { return a.at("id") < b.at("id"); });
    return utterances;
  }

  MiniAn4Settings settings_;
};

}  // namespace

TUTTI_PLUGIN(registry) {
  using S = MiniAn4Settings;
  config::Schema<S> schema("mini_an4", "ESPnet's miniature of CMU's AN4.");
  schema.field("source", &S::source, "the archive, or a folder with an4/etc");
  schema.field("source_dir", &S::source_dir, "ESPnet3's name for source");
  schema.field("recipe_dir", &S::recipe_dir,
               "ESPnet3 names it once more; the recipe's own is used");
  schema.field("dev_size", &S::dev_size, "utterances kept from training for validation",
               {.min = 1});
  registry.add<systems::DatasetBuilder>(
      schema, [](const S& settings) { return std::make_unique<MiniAn4Builder>(settings); });
}

}  // namespace tutti::recipes
