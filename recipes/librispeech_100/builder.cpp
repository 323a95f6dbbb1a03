// LibriSpeech with 100 hours of training: a corpus that is here already, or the five archives of
// openslr.org/12, downloaded with checksums and unpacked one by one.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "tutti/config/plugin.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/systems/builders/archives.h"
#include "tutti/systems/builders/download.h"
#include "tutti/systems/dataset_builder.h"

namespace tutti::recipes {
namespace {

using systems::BuildContext;

namespace fs = std::filesystem;

struct Part {
  const char* name;
  const char* md5;  // of NAME.tar.gz, as openslr.org lists them
};
constexpr std::array<Part, 5> kParts = {{
    {"train-clean-100", "2a93770f6d5c6c964bc36631d331a522"},
    {"dev-clean", "42e2234ba48799c1f50f24a7926300a1"},
    {"dev-other", "c8d0bcc9cca99d4f8b62fcc847357931"},
    {"test-clean", "32fa31d27d2e1cad72775fee3f4849a9"},
    {"test-other", "fb5a50374b501bb3bac4815ee91d3135"},
}};

// The folder LibriSpeech/ in (or named by) a place, or nothing.
fs::path corpus_in(const fs::path& place) {
  if (place.empty()) return {};
  if (fs::is_directory(place / "LibriSpeech")) return place / "LibriSpeech";
  return place.filename() == "LibriSpeech" && fs::is_directory(place) ? place : fs::path();
}

struct LibriSpeechSettings {
  std::string source_dir;
  std::string recipe_dir;
  std::string url = "https://www.openslr.org/resources/12";
  std::map<std::string, std::string> checksums;
  bool keep_archives = true;
};

class LibriSpeechBuilder final : public systems::DatasetBuilder {
 public:
  explicit LibriSpeechBuilder(LibriSpeechSettings settings) : settings_(std::move(settings)) {}
  std::vector<std::string> splits() const override {
    std::vector<std::string> names;
    for (const auto& part : kParts) names.emplace_back(part.name);
    return names;
  }

  void build(const BuildContext& context) const override {
    make_folders(context.data_dir);
    for (const auto& part : kParts) {
      const auto utterances = read_part(context, folder_of(context, part));
      log::info("{}: {} utterances", part.name, utterances.size());
      systems::write_manifest(systems::manifest_path(context.data_dir, part.name), utterances);
    }
  }

 private:
  // Where a part is, or is put: source_dir, $LIBRISPEECH, then the recipe's own download/.
  fs::path folder_of(const BuildContext& context, const Part& part) const {
    const char* variable = std::getenv("LIBRISPEECH");
    for (const fs::path& place :
         {fs::path(settings_.source_dir), fs::path(variable == nullptr ? "" : variable)}) {
      const fs::path corpus = corpus_in(place);
      if (!corpus.empty() && fs::is_directory(corpus / part.name)) return corpus / part.name;
    }
    const fs::path home = context.recipe_dir / "download";
    const fs::path folder = home / "LibriSpeech" / part.name;
    const fs::path marker = home / fmt::format(".{}.unpacked", part.name);
    // A folder without our marker is the user's own copy; a marker is written last.
    const fs::path archive = home / fmt::format("{}.tar.gz", part.name);
    const bool ours = fs::exists(archive) || fs::exists(archive.string() + ".part");
    if (fs::exists(marker) || (fs::is_directory(folder) && !ours)) return folder;
    const auto checksum = settings_.checksums.find(part.name);
    systems::download({.url = fmt::format("{}/{}.tar.gz", settings_.url, part.name),
                       .md5 = checksum == settings_.checksums.end() ? part.md5 : checksum->second},
                      archive);
    systems::unpack(archive, home);
    write_file_atomic(marker, "");
    if (!settings_.keep_archives) fs::remove(archive);
    return folder;
  }

  // Every SPEAKER-CHAPTER.trans.txt below the folder: lines "ID WORDS", audio beside it.
  static std::vector<Json> read_part(const BuildContext& context, const fs::path& folder) {
    std::vector<Json> utterances;
    if (fs::is_directory(folder)) {
      for (const auto& entry : fs::recursive_directory_iterator(folder)) {
        if (!entry.path().filename().string().ends_with(".trans.txt")) continue;
        for (const auto& line : split(read_file(entry.path()), '\n')) {
          const auto words = split_words(line);
          if (words.size() < 2) continue;
          const fs::path audio = entry.path().parent_path() / (words[0] + ".flac");
          if (!fs::exists(audio))
            throw DataError(audio.string() + ": listed in " + entry.path().filename().string() +
                                " but not there",
                            "unpack the archive again");
          utterances.push_back({{"id", words[0]},
                                {"audio", fs::proximate(audio, context.data_dir).string()},
                                {"text", join({words.begin() + 1, words.end()}, " ")},
                                {"speaker", split(words[0], '-')[0]}});
        }
      }
    }
    if (utterances.empty())
      throw DataError(folder.string() + ": no transcripts",
                      "set create_dataset.source_dir to the folder that holds LibriSpeech/");
    std::sort(utterances.begin(), utterances.end(),
              [](const Json& a, const Json& b) { return a.at("id") < b.at("id"); });
    return utterances;
  }

  LibriSpeechSettings settings_;
};

}  // namespace

TUTTI_PLUGIN(registry) {
  using S = LibriSpeechSettings;
  config::Schema<S> schema("librispeech_100", "LibriSpeech with 100 hours of training.");
  schema.field("source_dir", &S::source_dir,
               "folder that holds LibriSpeech/; empty: $LIBRISPEECH, else downloaded");
  schema.field("recipe_dir", &S::recipe_dir,
               "ESPnet3 names it once more; the recipe's own is used");
  schema.field("url", &S::url, "where the archives are");
  schema.field("checksums", &S::checksums, "MD5 of each archive of a mirror that packs its own");
  schema.field("keep_archives", &S::keep_archives, "after they are unpacked");
  registry.add<systems::DatasetBuilder>(
      schema, [](const S& settings) { return std::make_unique<LibriSpeechBuilder>(settings); });
}

}  // namespace tutti::recipes
