#include "tutti/core/file_trust.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "tutti/core/error.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

unsigned mode_of(const fs::path& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 07777U;
}

struct Umask {
  explicit Umask(mode_t mask) : before(::umask(mask)) {}
  ~Umask() { ::umask(before); }
  const mode_t before;
};

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const IoError& error) {
    return error.what();
  }
  return "not refused";
}

TEST(FileTrust, APrivateFolderIsOursAloneWhateverTheUmaskAndTheFolderAbove) {
  const Umask umask(0);
  const TempFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 02777), 0);  // a project folder with the set-group bit
  make_private_folder(folder.path() / "run/.tutti");
  EXPECT_EQ(mode_of(folder.path() / "run/.tutti") & 0777U, 0700U);
  ASSERT_EQ(::chmod((folder.path() / "run/.tutti").c_str(), 0777), 0);
  make_private_folder(folder.path() / "run/.tutti");
  EXPECT_EQ(mode_of(folder.path() / "run/.tutti") & 0777U, 0700U);
  make_own_folder(folder.path() / "run");
  EXPECT_EQ(mode_of(folder.path() / "run") & 0777U, 0755U);
}

TEST(FileTrust, LinksAreNotFollowed) {
  const TempFolder folder;
  make_private_folder(folder.path() / "real");
  write_file_atomic(folder.path() / "real/key", "x", 0600);
  fs::create_symlink("real", folder.path() / "link");
  fs::create_symlink("key", folder.path() / "real/other");
  EXPECT_THAT(refusal([&] { make_private_folder(folder.path() / "link"); }),
              HasSubstr("symbolic link"));
  EXPECT_THAT(refusal([&] { read_trusted_file(folder.path() / "link/key"); }),
              HasSubstr("symbolic link"));
  EXPECT_THAT(refusal([&] { read_trusted_file(folder.path() / "real/other"); }),
              HasSubstr("symbolic link"));
  EXPECT_EQ(read_trusted_file(folder.path() / "real/key"), "x");
}

TEST(FileTrust, WhatOthersMayWriteIsRefusedWithItsMode) {
  const TempFolder folder;
  const fs::path file = folder.path() / "a/b/key";
  make_private_folder(folder.path() / "a");
  make_private_folder(folder.path() / "a/b");
  write_file_atomic(file, "x", 0600);
  EXPECT_EQ(read_trusted_file(file, folder.path() / "a"), "x");
  ASSERT_EQ(::chmod(file.c_str(), 0620), 0);
  EXPECT_THAT(refusal([&] { read_trusted_file(file); }),
              HasSubstr("others may write it (mode 0620)"));
  ASSERT_EQ(::chmod(file.c_str(), 0600), 0);
  ASSERT_EQ(::chmod((folder.path() / "a").c_str(), 0770), 0);
  EXPECT_EQ(read_trusted_file(file), "x");
  EXPECT_THAT(refusal([&] { read_trusted_file(file, folder.path() / "a"); }),
              HasSubstr("others may write it (mode 0770)"));
}

TEST(FileTrust, WhatBelongsToAnotherUserIsRefusedWithTheOwner) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, to be two users";
  const TempFolder folder;
  make_private_folder(folder.path() / "a");
  write_file_atomic(folder.path() / "a/key", "x", 0600);
  ASSERT_EQ(::chown((folder.path() / "a/key").c_str(), 12345, 12345), 0);
  EXPECT_THAT(refusal([&] { read_trusted_file(folder.path() / "a/key"); }),
              HasSubstr("another user (owner 12345"));
  ::setenv(kTrustedUserVariable, "12345", 1);
  EXPECT_EQ(read_trusted_file(folder.path() / "a/key"), "x");
  ::unsetenv(kTrustedUserVariable);
  ASSERT_EQ(::chown((folder.path() / "a").c_str(), 12345, 12345), 0);
  EXPECT_THAT(refusal([&] { make_private_folder(folder.path() / "a"); }),
              HasSubstr("another user"));
  EXPECT_THAT(refusal([&] { make_own_folder(folder.path() / "a"); }), HasSubstr("another user"));
  // Their link in a folder that all may write leads wherever they like.
  make_folders(folder.path() / "shared");
  ASSERT_EQ(::chmod((folder.path() / "shared").c_str(), 0777), 0);
  make_private_folder(folder.path() / "mine");
  fs::create_symlink(folder.path() / "mine", folder.path() / "shared/run");
  ASSERT_EQ(::lchown((folder.path() / "shared/run").c_str(), 12345, 12345), 0);
  EXPECT_THAT(refusal([&] { make_own_folder(folder.path() / "shared/run"); }),
              HasSubstr("symbolic link of another user"));
}

}  // namespace
}  // namespace tutti
