#include "tutti/data/io/archive.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/data/fixtures.h"
#include "tutti/config/load.h"
#include "tutti/data/sources.h"

namespace tutti::data {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

template <class F>
std::string error_of(F&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class Archive : public ::testing::Test {
 protected:
  void pack(int n) {
    ArchiveWriter out(file_);
    for (int i = 0; i < n; ++i) {
      const Audio audio{testing::sine(200 + 10 * i, 0.05, 8000), 8000};
      const std::string uid = "u" + std::to_string(i), text = "text " + std::to_string(i);
      out.add({.uid = uid,
               .text = text,
               .speaker = "s",
               .sample_rate = 8000,
               .num_samples = audio.samples.size()},
              encode_audio(audio, "wav"));
    }
    out.finish();
  }
  TempFolder folder_;
  const fs::path file_ = folder_.path() / "a.tta";
};

TEST_F(Archive, GivesBackWhatWasPacked) {
  pack(50);
  const auto dataset = open_archive(file_, {.sample_rate = 16000});
  ASSERT_EQ(dataset->size(), 50U);
  const Sample sample = dataset->read(dataset->find("u7"));
  EXPECT_EQ(sample.text, "text 7");
  EXPECT_EQ(sample.speaker, "s");
  EXPECT_EQ(sample.sample_rate, 16000);
  EXPECT_EQ(sample.speech.size(), 800U);
  EXPECT_EQ(dataset->num_samples(7), 400U);
  EXPECT_EQ(dataset->find("nope"), Dataset::kMissing);
}

TEST_F(Archive, EveryFlippedByteIsFoundAndNamed) {
  pack(3);
  const std::string good = read_file(file_);
  const ArchiveReader reader(file_);
  for (std::size_t i = 8; i < good.size(); i += 3) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x04);
    {
      UniqueFd fd(::open(file_.c_str(), O_WRONLY));
      write_all(fd.get(), bad, file_);
    }
    int failures = 0;
    std::string last;
    for (std::size_t r = 0; r < 3; ++r) {
      try {
        reader.read(r);
      } catch (const DataError& error) {
        ++failures;
        last = error.what();
        EXPECT_THAT(last, HasSubstr(": u" + std::to_string(r)));
      }
    }
    // The padding between records carries nothing.
    EXPECT_LE(failures, 1);
  }
}

TEST_F(Archive, LostOrForeignIndexIsAnErrorWithTheCure) {
  pack(5);
  const fs::path index = file_.string() + ".idx";
  const std::string good = read_file(index);
  fs::remove(index);
  EXPECT_THROW(open_archive(file_), IoError);
  EXPECT_EQ(rebuild_archive_index(file_), 5U);
  EXPECT_EQ(read_file(index), good);
  write_file_atomic(index, good.substr(0, good.size() - 3));
  EXPECT_THAT(error_of([&] { open_archive(file_); }), HasSubstr("tutti pack --reindex"));
  write_file_atomic(index, good);
  write_file_atomic(file_, read_file(file_) + "more");
  EXPECT_THAT(error_of([&] { open_archive(file_); }), HasSubstr("belongs to an archive of"));
  EXPECT_THROW(rebuild_archive_index(file_), DataError);
}

TEST_F(Archive, AKilledPackerLeavesNothingThatLooksWhole) {
  const pid_t child = ::fork();
  if (child == 0) {
    ArchiveWriter out(file_);
    for (int i = 0; i < 100; ++i)
      out.add({.uid = "u" + std::to_string(i)}, std::string(100'000, 'x'));
    ::raise(SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_FALSE(fs::exists(file_));
  EXPECT_FALSE(fs::exists(file_.string() + ".idx"));
}

TEST_F(Archive, AFullDiskIsAnIoErrorAndLeavesNothing) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    int code = 1;
    try {
      ArchiveWriter out(file_);
      for (int i = 0; i < 100; ++i)
        out.add({.uid = "u" + std::to_string(i)}, std::string(100'000, 'x'));
      out.finish();
    } catch (const IoError&) {
      code = 0;
    }
    ::_exit(code);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

TEST_F(Archive, DuplicateIdsAreRefused) {
  ArchiveWriter out(file_);
  out.add({.uid = "a"}, "x");
  out.add({.uid = "a"}, "y");
  EXPECT_THROW(out.finish(), DataError);
  EXPECT_THROW(out.add({}, "z"), DataError);
}

TEST_F(Archive, OpensThroughDatasetEntries) {
  pack(4);
  write_wav(folder_.path() / "w.wav", {testing::sine(100, 0.1, 8000), 8000});
  write_file_atomic(folder_.path() / "m.jsonl", R"({"id":"w","audio":"w.wav","text":"W"})");
  const auto entries = config::parse_yaml(
      "- data_src: archive\n  data_src_args: {archive: " + file_.string() +
          "}\n- name: extra\n  data_src: jsonl\n  data_src_args: {manifest: " +
          (folder_.path() / "m.jsonl").string() + ", channel: mean}\n  transform: lower\n",
      "t.yaml");
  DatasetSources sources = DatasetSources::standard();
  sources.set_transforms([](const config::Node&, config::Problems&) {
    return Transform([](Sample& s) { s.text = "w"; });
  });
  config::Problems problems;
  const auto dataset = sources.open_list(entries, problems);
  problems.throw_if_any();
  ASSERT_EQ(dataset->size(), 5U);
  EXPECT_EQ(dataset->read(4).text, "w");

  const auto wrong = [&](const std::string& yaml) {
    config::Problems found;
    sources.open_list(config::parse_yaml(yaml, "t.yaml"), found);
    return found.describe();
  };
  EXPECT_THAT(wrong("- data_src: kaldy\n"), HasSubstr("did you mean 'kaldi'?"));
  EXPECT_THAT(wrong("- data_src: kaldi\n  data_src_args: {wav_csp: x}\n"),
              HasSubstr("did you mean 'wav_scp'?"));
  EXPECT_THAT(wrong("- data_scr: kaldi\n"), HasSubstr("did you mean 'data_src'?"));
  EXPECT_THAT(wrong("- data_src: tsv\n  data_src_args: {manifest: x, channel: left}\n"),
              HasSubstr("expected first, mean or a number"));
  EXPECT_THAT(wrong("3\n"), HasSubstr("expected a list"));
}

}  // namespace
}  // namespace tutti::data
