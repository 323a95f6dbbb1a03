// Which program this process runs, and on which machine.
#pragma once

#include <filesystem>
#include <string>

namespace tutti {

// The program to start for another process of the same kind: a worker, a rank, a sibling beside it.
//
//   Process::start({.argv = {own_program(), "worker", "--run", folder}});
//
// It is /proc/self/exe, except in a bundle that brings its own loader and C library (packaging/bundle.sh):
// there that link names the loader, and TUTTI_PROGRAM the small program that called it.
std::filesystem::path own_program();

// As `hostname` says it.
std::string host_name();

}  // namespace tutti
