// A corpus in LibriSpeech's layout, with made-up voices and words, the same in every run:
//
//   bench_train_corpus OUT --utterances 4000
//
// OUT/LibriSpeech/PART/SPEAKER/CHAPTER holds FLAC files and SPEAKER-CHAPTER.trans.txt. Lengths are
// train-clean-100's: 12.7 s in the mean, three of four near 15, none over 24.5. OUT/tokens.txt has every
// word, 5,000 tokens in all. See train_data.sh.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "bench/babble.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/text.h"
#include "tutti/core/threads.h"
#include "tutti/data/io/audio.h"

namespace {

using namespace tutti;
namespace fs = std::filesystem;

constexpr int kPerChapter = 50;
constexpr std::size_t kLexicon = 4997;  // with three marks as many tokens as the recipe has

double length_of(Random& rng) {
  const double seconds = rng.uniform() < 0.25 ? rng.uniform(1.4, 12.0) : 14.7 + 1.3 * rng.normal();
  return std::clamp(seconds, 1.4, 24.5);
}

// Made-up words of one to four syllables, the first ones short.
std::vector<std::string> make_lexicon() {
  static constexpr const char* kOnsets[] = {"B", "D", "F",  "G",  "H", "K",  "L",  "M", "N", "P",
                                            "R", "S", "SH", "ST", "T", "TH", "TR", "W", "V", "Y"};
  static constexpr const char* kRhymes[] = {"A",  "AN", "AR", "E",  "EN", "ER", "EST", "I",
                                            "IN", "IS", "O",  "ON", "OR", "OU", "U",   "UND"};
  Random rng({11});
  std::vector<std::string> words;
  std::set<std::string> known;
  while (words.size() < kLexicon) {
    std::string word;
    for (std::uint64_t i = 0, n = 1 + rng.below(words.size() < 200 ? 2 : 4); i < n; ++i) {
      word += kOnsets[rng.below(std::size(kOnsets))];
      word += kRhymes[rng.below(std::size(kRhymes))];
    }
    if (known.insert(word).second) words.push_back(word);
  }
  return words;
}

// 2.7 words a second, as people read; few words often and many seldom, as in a language.
std::string text_of(Random& rng, double seconds, const std::vector<std::string>& lexicon) {
  std::string out;
  for (int i = 0; i < std::max(1, static_cast<int>(2.7 * seconds)); ++i) {
    const double rank = std::pow(static_cast<double>(kLexicon), rng.uniform());
    out += (i > 0 ? " " : "") + lexicon[static_cast<std::size_t>(rank) - 1];
  }
  return out;
}

void write_part(const fs::path& corpus, const std::string& part, int speaker, int utterances,
                const std::vector<std::string>& lexicon) {
  const int chapters = (utterances + kPerChapter - 1) / kPerChapter;
  in_threads(static_cast<std::size_t>(chapters), threads_at_most(64), [&](std::size_t chapter) {
    const std::string name = fmt::format("{}-{}", speaker, chapter);
    const fs::path folder = corpus / part / std::to_string(speaker) / std::to_string(chapter);
    make_folders(folder);
    std::string transcripts;
    const int first = static_cast<int>(chapter) * kPerChapter;
    for (int i = first; i < std::min(first + kPerChapter, utterances); ++i) {
      Random rng({9, static_cast<std::uint64_t>(speaker), static_cast<std::uint64_t>(i)});
      const double seconds = length_of(rng);
      const std::string id = fmt::format("{}-{:04}", name, i - first);
      write_file_atomic(
          folder / (id + ".flac"),
          data::encode_audio(
              {.samples = bench::babble(rng, seconds), .sample_rate = bench::kBabbleRate}, "flac"));
      transcripts += id + " " + text_of(rng, seconds, lexicon) + "\n";
    }
    write_file_atomic(folder / (name + ".trans.txt"), transcripts);
  });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Makes a corpus in LibriSpeech's layout with made-up voices.");
  std::string out;
  int utterances = 4000;
  app.add_option("OUT", out, "folder")->required();
  app.add_option("--utterances", utterances, "of train-clean-100; the other parts have 32");
  CLI11_PARSE(app, argc, argv);
  try {
    const std::vector<std::string> lexicon = make_lexicon();
    const fs::path corpus = fs::path(out) / "LibriSpeech";
    write_part(corpus, "train-clean-100", 1, utterances, lexicon);
    int speaker = 2;
    for (const char* part : {"dev-clean", "dev-other", "test-clean", "test-other"})
      write_part(corpus, part, speaker++, 32, lexicon);
    write_file_atomic(fs::path(out) / "tokens.txt",
                      "<blank>\n<unk>\n" + join(lexicon, "\n") + "\n<sos/eos>\n");
  } catch (...) {
    return report_and_exit_code();
  }
  return 0;
}
