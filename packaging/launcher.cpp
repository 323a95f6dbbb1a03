// Starts a program of a bundle with the bundle's own loader and C library, so that it runs on systems older than the
// one it was built on. Linked statically; a copy of it stands in bin/ under each program's name:
//
//   bin/tutti-run  ->  lib/ld-linux-x86-64.so.2 --library-path lib --argv0 ARGV0 libexec/tutti-run ARGS...
//
// A shell script would do, but the kernel replaces a script's argv[0], and Tutti's programs learn from it which
// command they are.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  const std::filesystem::path bundle = self.parent_path().parent_path();
  const std::string loader = bundle / "lib/ld-linux-x86-64.so.2";
  std::vector<std::string> words = {loader,
                                    "--library-path",
                                    bundle / "lib",
                                    "--argv0",
                                    argc > 0 ? argv[0] : self.string(),
                                    bundle / "libexec" / self.filename()};
  words.insert(words.end(), argv + std::min(argc, 1), argv + argc);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::setenv("TUTTI_PROGRAM", self.c_str(), 1);
  ::execv(loader.c_str(), pointers.data());
  std::perror(loader.c_str());
  return 4;
}
