#include "tutti/systems/builders/archives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/subprocess.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;

class Archives : public testing::Test {
 protected:
  // An archive of one file "corpus/a.txt".
  fs::path pack(const std::string& name) const {
    make_folders(folder_.path() / "corpus");
    write_file_atomic(folder_.path() / "corpus/a.txt", std::string(100000, 'a'));
    const fs::path archive = folder_.path() / name;
    const auto result =
        run_command({.argv = {"tar", "--create", "--auto-compress", "--file", archive.string(),
                              "-C", folder_.path().string(), "corpus"}});
    EXPECT_TRUE(result.ok()) << result.describe();
    return archive;
  }
  TempFolder folder_;
};

TEST_F(Archives, AreUnpackedHoweverTheyAreCompressed) {
  for (const char* kind : {"tar", "tar.gz", "tar.xz"}) {
    const fs::path to = folder_.path() / kind;
    unpack(pack(std::string("c.") + kind), to);
    EXPECT_EQ(read_file(to / "corpus/a.txt").size(), 100000U) << kind;
  }
}

TEST_F(Archives, ThatAreCutShortAreNamed) {
  const fs::path archive = pack("c.tar.gz");
  fs::resize_file(archive, fs::file_size(archive) / 2);
  EXPECT_THAT([&] { unpack(archive, folder_.path() / "out"); },
              testing::ThrowsMessage<DataError>(testing::HasSubstr(archive.string() + ": ")));
}

}  // namespace
}  // namespace tutti::systems
