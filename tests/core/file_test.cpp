#include "tutti/core/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "tutti/core/error.h"
#include "tutti/core/path_inside.h"
#include "tutti/core/program.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::size_t num_files(const fs::path& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

TEST(WriteFileAtomic, ReplacesTheFileAndKeepsTheMode) {
  TempFolder folder;
  const fs::path path = folder.path() / "a.json";
  write_file_atomic(path, "old");
  // Writers on hosts and in pods with equal pids keep apart.
  write_file_atomic(path, [&](int) {
    bool found = false;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      found = found || (is_temporary_name(entry.path()) &&
                        entry.path().string().find(host_name()) != std::string::npos);
    EXPECT_TRUE(found) << "the temporary name says no host";
  });
  write_file_atomic(path, std::string_view("new\0bytes", 9), 0600);
  EXPECT_EQ(read_file(path), std::string("new\0bytes", 9));
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  EXPECT_EQ(num_files(folder.path()), 1U);
}

// Pods may share a host name and a pid: then even the temporary names are equal.
TEST(WriteFileAtomic, AnotherWritersTemporaryFileIsLeftAlone) {
  TempFolder folder;
  const fs::path path = folder.path() / "a";
  std::string name;
  write_file_atomic(path, [&](int) {
    for (const auto& entry : fs::directory_iterator(folder.path()))
      if (is_temporary_name(entry.path())) name = entry.path().string();
  });
  const auto dot = name.rfind('.');
  const int serial = std::stoi(name.substr(dot + 1));
  std::vector<std::string> others;
  for (int next = serial + 1; next < serial + 4; ++next) {
    others.push_back(name.substr(0, dot + 1) + std::to_string(next));
    std::ofstream(others.back()) << "somebody else's";
  }
  write_file_atomic(path, "ours");
  EXPECT_EQ(read_file(path), "ours");
  for (const std::string& other : others) EXPECT_EQ(read_file(other), "somebody else's");
}

// The process hits a real limit on file size while writing, as on a full disk.
TEST(WriteFileAtomic, FullDiskLeavesTheOldFileAndNoLitter) {
  TempFolder folder;
  const fs::path path = folder.path() / "a.bin";
  write_file_atomic(path, "precious");
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_file_atomic(path, std::string(1 << 20, 'x'));
      ::_exit(1);
    } catch (const IoError& e) {
      ::_exit(std::string(e.what()).find("a.bin: File too large") != std::string::npos ? 0 : 2);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(read_file(path), "precious");
  EXPECT_EQ(num_files(folder.path()), 1U);
}

TEST(WriteFileAtomic, ThrowingWriterLeavesNothing) {
  TempFolder folder;
  EXPECT_THROW(write_file_atomic(folder.path() / "a", [](int) { throw DataError("no"); }),
               DataError);
  EXPECT_EQ(num_files(folder.path()), 0U);
}

TEST(ReadFile, NamesTheFileInErrors) {
  TempFolder folder;
  try {
    read_file(folder.path() / "absent");
    FAIL();
  } catch (const IoError& e) {
    EXPECT_THAT(e.what(), HasSubstr("absent: No such file or directory"));
  }
  EXPECT_THROW(read_file(folder.path()), IoError);
}

TEST(ReadFile, ReadsFilesWithoutASize) {
  EXPECT_THAT(read_file("/proc/self/status"), HasSubstr("Name:"));
}

TEST(MakeFolders, FailsWithThePathWhenAFileIsInTheWay) {
  TempFolder folder;
  write_file_atomic(folder.path() / "x", "");
  EXPECT_THROW(make_folders(folder.path() / "x" / "y"), IoError);
}

TEST(PathInside, IsTheWayFromTheFolder) {
  EXPECT_EQ(path_inside("/a/b/c.txt", "/a"), "b/c.txt");
  EXPECT_EQ(path_inside("/a/x/../b", "/a/"), "b");
  EXPECT_EQ(path_inside("/a", "/a"), ".");
  EXPECT_EQ(path_inside("/ab/c", "/a"), "");
  EXPECT_EQ(path_inside("/a/../c", "/a"), "");
}

TEST(TempFolder, IsRemovedWithItsContent) {
  fs::path path;
  {
    TempFolder folder;
    path = folder.path();
    make_folders(path / "a" / "b");
    EXPECT_TRUE(fs::exists(path));
  }
  EXPECT_FALSE(fs::exists(path));
}

}  // namespace
}  // namespace tutti
