// The Free Spoken Digit Dataset: isolated digits of several speakers. The last speaker by name (or
// `test_speaker`) is never heard in training.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"
#include "tutti/systems/builders/archives.h"
#include "tutti/systems/builders/numbers.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

class FsddBuilder final : public DatasetBuilder {
 public:
  std::vector<std::string> splits() const override { return {"train", "valid", "test"}; }

  void build(const BuildContext& context) const override {
    make_folders(context.data_dir);
    const fs::path source =
        unpacked_source(context, "set it to fsdd.tar.gz or to a checkout of the dataset");
    std::map<std::string, std::vector<Json>> by_speaker;
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(source))
      if (entry.path().extension() == ".wav") files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const auto& file : files) {
      const auto parts = split(file.stem().string(), '_');  // "7_jackson_32"
      if (parts.size() != 3 || parts[0].size() != 1 ||
          !std::isdigit(static_cast<unsigned char>(parts[0][0])))
        continue;
      by_speaker[parts[1]].push_back({{"id", parts[1] + "_" + parts[0] + "_" + parts[2]},
                                      {"audio", fs::relative(file, context.data_dir).string()},
                                      {"text", digits_in_words(parts[0])},
                                      {"speaker", parts[1]}});
    }
    if (by_speaker.size() < 2)
      throw DataError(fmt::format("{}: found {} speakers, expected at least 2", source.string(),
                                  by_speaker.size()),
                      "recordings are named DIGIT_SPEAKER_NUMBER.wav");
    const std::string held_out =
        context.options["test_speaker"].value_or(by_speaker.rbegin()->first);
    if (!by_speaker.contains(held_out))
      throw DataError("no recordings of test_speaker " + held_out);
    std::vector<Json> train;
    std::vector<Json> valid;
    for (const auto& [speaker, utterances] : by_speaker) {
      if (speaker == held_out) continue;
      for (std::size_t i = 0; i < utterances.size(); ++i)
        (i % 20 == 7 ? valid : train).push_back(utterances[i]);
    }
    write_manifest(manifest_path(context.data_dir, "valid"), valid);
    write_manifest(manifest_path(context.data_dir, "test"), by_speaker[held_out]);
    write_manifest(manifest_path(context.data_dir, "train"), train);
  }
};

}  // namespace

std::unique_ptr<DatasetBuilder> make_fsdd_builder() { return std::make_unique<FsddBuilder>(); }

}  // namespace tutti::systems
