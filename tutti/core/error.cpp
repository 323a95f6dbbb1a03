#include "tutti/core/error.h"

#include <fmt/format.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <new>

namespace tutti {

void throw_errno(const std::string& what, int errno_value, std::string fix) {
  throw IoError(fmt::format("{}: {}", what, std::strerror(errno_value)), std::move(fix));
}

int report_and_exit_code() noexcept {
  try {
    throw;
  } catch (const AlreadyReported& e) {
    return static_cast<int>(e.exit_code());
  } catch (const Error& e) {
    std::fprintf(stderr, "%.*s: %s\n", static_cast<int>(e.kind().size()), e.kind().data(),
                 e.what());
    return static_cast<int>(e.exit_code());
  } catch (const std::filesystem::filesystem_error& e) {  // it names what was done to which path
    std::fprintf(stderr, "io error: %s\n  fix: look at that path and its file system\n", e.what());
    return static_cast<int>(ExitCode::kIo);
  } catch (const std::bad_alloc&) {
    std::fputs("io error: out of memory\n  fix: give the process more memory or a smaller batch\n",
               stderr);
    return static_cast<int>(ExitCode::kIo);
  } catch (const std::exception& e) {
    std::fprintf(stderr,
                 "internal error: %s\n  fix: this is a bug in Tutti; please report it with the "
                 "command you ran\n",
                 e.what());
  } catch (...) {  // a plugin may throw anything; it must not end in std::terminate
    std::fputs("internal error: unknown exception\n", stderr);
  }
  return static_cast<int>(ExitCode::kInternal);
}

}  // namespace tutti
