// The download of recipes/librispeech_100 against a server that drops connections, and its model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <sndfile.h>

#include <cstdlib>
#include <thread>

#include "tests/places.h"
#include "tests/systems/recipe_folder.h"
#include "tutti/core/error.h"
#include "tutti/core/json.h"
#include "tutti/core/text.h"
#include "tutti/systems/builders/download.h"
#include "tutti/systems/stage.h"
#include "tutti/systems/training/training_model.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string md5_of(const fs::path& file) {
  return split_words(run_command({.argv = {"md5sum", file.string()}}).out).at(0);
}

// Serves a folder with ranges; the first answers for a file stop after `break_after` bytes.
class Server {
 public:
  explicit Server(fs::path folder, int num_breaks = 0, std::size_t break_after = 2000)
      : breaks_left_(num_breaks) {
    server_.Get("/(.*)", [this, folder, break_after](const httplib::Request& request,
                                                     httplib::Response& response) {
      const fs::path file = folder / request.matches[1].str();
      ++requests_;
      if (!request.ranges.empty()) ++resumed_;
      if (!fs::exists(file)) {
        response.status = 404;
        return;
      }
      const auto content = std::make_shared<std::string>(read_file(file));
      const bool breaks = breaks_left_ > 0;
      if (breaks) --breaks_left_;
      response.set_content_provider(
          content->size(), "application/gzip",
          [content, breaks, break_after](std::size_t offset, std::size_t length,
                                         httplib::DataSink& sink) {
            const std::size_t size = std::min(length, breaks ? break_after : std::size_t{65536});
            sink.write(content->data() + offset, size);
            return !breaks;  // false: the connection is closed in the middle
          });
    });
    for (const char* name : {"no_proxy", "NO_PROXY"}) ::setenv(name, "127.0.0.1", 1);
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
  }
  ~Server() {
    server_.stop();
    thread_.join();
  }
  std::string url(const std::string& path = "") const {
    return "http://127.0.0.1:" + std::to_string(port_) + (path.empty() ? "" : "/" + path);
  }
  int resumed() const { return resumed_; }
  int requests() const { return requests_; }

 private:
  httplib::Server server_;
  std::thread thread_;
  int port_ = 0;
  std::atomic<int> breaks_left_;
  std::atomic<int> resumed_{0};
  std::atomic<int> requests_{0};
};

void write_flac(const fs::path& file) {
  SF_INFO info{};
  info.samplerate = 16000;
  info.channels = 1;
  info.format = SF_FORMAT_FLAC | SF_FORMAT_PCM_16;
  SNDFILE* sound = sf_open(file.c_str(), SFM_WRITE, &info);
  ASSERT_NE(sound, nullptr) << sf_strerror(nullptr);
  std::vector<float> samples(8000);
  for (std::size_t i = 0; i < samples.size(); ++i)
    samples[i] = static_cast<float>((i * 7919) % 2000) / 4000 - 0.25F;
  sf_write_float(sound, samples.data(), static_cast<sf_count_t>(samples.size()));
  sf_close(sound);
}

// The five archives with two utterances each, in LibriSpeech's layout.
Json make_miniature(const fs::path& folder) {
  Json checksums;
  int speaker = 19;  // every part has speakers of its own
  for (const char* part :
       {"train-clean-100", "dev-clean", "dev-other", "test-clean", "test-other"}) {
    const std::string name = std::to_string(speaker++) + "-198";
    const fs::path chapter = folder / "LibriSpeech" / part / split(name, '-')[0] / "198";
    fs::create_directories(chapter);
    for (const char* number : {"-0000", "-0001"}) write_flac(chapter / (name + number + ".flac"));
    write_file_atomic(chapter / (name + ".trans.txt"),
                      name + "-0000 NORTHANGER ABBEY\n" + name + "-0001 THIS LITTLE WORK\n");
    const std::string archive = std::string(part) + ".tar.gz";
    run_command({.argv = {"tar", "-czf", (folder / archive).string(), "-C", folder.string(),
                          "LibriSpeech/" + std::string(part)}});
    checksums[part] = md5_of(folder / archive);
  }
  return checksums;
}

TEST(Download, ContinuesABrokenConnectionAndChecksTheSum) {
  TempFolder folder;
  write_file_atomic(folder.path() / "big.bin", std::string(50000, 'x') + "end");
  Server server(folder.path(), 4);
  const fs::path here = folder.path() / "here" / "big.bin";
  download({.url = server.url("big.bin"), .md5 = md5_of(folder.path() / "big.bin")}, here);
  EXPECT_EQ(read_file(here), read_file(folder.path() / "big.bin"));
  EXPECT_GE(server.resumed(), 4);
  const int requests = server.requests();
  download({.url = server.url("big.bin")}, here);
  EXPECT_EQ(server.requests(), requests);  // it is there
}

TEST(Download, LeavesNoFileWithAWrongSumAndSaysWhatIsMissing) {
  TempFolder folder;
  write_file_atomic(folder.path() / "a.bin", "changed");
  Server server(folder.path());
  const fs::path here = folder.path() / "here.bin";
  EXPECT_THROW(download({.url = server.url("a.bin"), .md5 = std::string(32, '0')}, here),
               DataError);
  EXPECT_FALSE(fs::exists(here));
  EXPECT_FALSE(fs::exists(here.string() + ".part"));
  EXPECT_THROW(download({.url = server.url("nothing.bin")}, here), DataError);
}

TEST(Download, ReplacesThePartOfAnotherFile) {
  TempFolder folder;
  write_file_atomic(folder.path() / "a.bin", std::string(30000, 'a'));
  Server server(folder.path());
  const fs::path here = folder.path() / "here.bin";
  write_file_atomic(here.string() + ".part", std::string(9000, 'z'));  // of an older version
  download({.url = server.url("a.bin"), .md5 = md5_of(folder.path() / "a.bin")}, here);
  EXPECT_EQ(read_file(here), std::string(30000, 'a'));
}

TEST(LibriSpeech, IsDownloadedUnpackedAndListed) {
  TempFolder source;
  const Json checksums = make_miniature(source.path());
  Server server(source.path(), 6, 400);
  const RecipeFolder recipe("librispeech_100");
  std::vector<std::string> words = {"create_dataset", "--config",
                                    recipe.conf("tuning/training_e_branchformer.yaml"),
                                    "+create_dataset.url=" + server.url()};
  for (const auto& [part, sum] : checksums.items())
    words.push_back("+create_dataset.checksums." + part + "=" + sum.get<std::string>());
  const auto result = recipe.run(words);
  ASSERT_TRUE(result.ok()) << result.describe();
  for (const auto& [part, sum] : checksums.items()) {
    const auto lines = split(trim(recipe.read("data/" + part + ".jsonl")), '\n');
    ASSERT_EQ(lines.size(), 2U);
    const Json first = parse_json(lines[0], part);
    EXPECT_EQ(first["text"], "NORTHANGER ABBEY");
    EXPECT_EQ(first["speaker"], split(first["id"].get<std::string>(), '-')[0]);
    EXPECT_TRUE(fs::exists(recipe.path() / "data" / first["audio"].get<std::string>()));
  }
  EXPECT_GE(server.resumed(), 1);
  words[0] = "validate_dataset";
  const auto valid = recipe.run(words);
  EXPECT_TRUE(valid.ok()) << valid.describe();
}

TEST(LibriSpeech, TheModelHasAsManyParametersAsEspnets) {
  TempFolder folder;
  std::string tokens = "<blank>\n<unk>\n";
  for (int i = 0; i < 4997; ++i) tokens += "t" + std::to_string(i) + "\n";
  const std::string list = (folder.path() / "tokens.txt").string();
  write_file_atomic(list, tokens + "<sos/eos>\n");
  const StageContext context = load_context(
      {.training = {fs::path(
           in_source("recipes/librispeech_100/conf/tuning/training_e_branchformer.yaml"))},
       .overrides = {"model.token_list=" + list, "dataset.preprocessor.token_list=" + list,
                     "tokenizer.model_type=word", "dataset.preprocessor.token_type=word",
                     "dataset.preprocessor.bpemodel=null", "model.normalize=null"}});
  std::int64_t count = 0;
  for (const auto& [name, tensor] : make_training_model(context.training)->named_parameters())
    count += tensor.numel();
  EXPECT_EQ(count, 38471952);
}

}  // namespace
}  // namespace tutti::systems
