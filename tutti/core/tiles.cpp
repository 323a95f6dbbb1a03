#include "tutti/core/tiles.h"

#include <fmt/format.h>

#include <cstdlib>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#endif

namespace tutti {
namespace {

// Both names are oneDNN's; the second is the older one, which all versions read.
constexpr const char* kLimitNames[] = {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"};

#if defined(__x86_64__)
constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
constexpr long kTileData = 18;               // XFEATURE_XTILEDATA

bool shows_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25;
  return (d & (kBf16 | kTile | kInt8)) != 0;
}

bool describes_tiles() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(0x1d, 0, &a, &b, &c, &d) != 0 && a >= 1;
}

// In a child of its own: the permission and the tile state stay out of this process.
[[noreturn]] void try_tiles() {
  ::signal(SIGILL, SIG_DFL);
  ::signal(SIGSEGV, SIG_DFL);
  if (::syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) ::_exit(1);
  alignas(64) unsigned char config[64] = {1};  // palette 1; one tile of 16 rows of 64 bytes
  config[16] = 64;
  config[48] = 16;
  __asm__ volatile("ldtilecfg %0\n\ttilezero %%tmm0\n\ttilerelease" : : "m"(config) : "memory");
  ::_exit(0);
}
#endif

}  // namespace

std::string tile_fault(const TileFacts& facts) {
  if (!facts.shown) return {};
  if (!facts.described) return "its CPUID leaf 0x1D is hidden";
  if (!facts.permitted) return "the kernel permits no tiles";
  if (!facts.runs) return "its instructions do not run";
  return {};
}

TileFacts look_at_tiles() {
  TileFacts facts;
#if defined(__x86_64__)
  facts.shown = shows_tiles();
  facts.described = facts.shown && describes_tiles();
  if (!facts.described) return facts;
  const pid_t child = ::fork();
  if (child == 0) try_tiles();
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child) return facts;
  facts.permitted = !(WIFEXITED(status) && WEXITSTATUS(status) == 1);
  facts.runs = WIFEXITED(status) && WEXITSTATUS(status) == 0;
#endif
  return facts;
}

std::string onednn_limit() {
  for (const char* name : kLimitNames)
    if (const char* value = std::getenv(name); value && *value)
      return fmt::format("{}={}", name, value);
  return {};
}

bool onednn_limit_excludes_bf16() {
  const std::string limit = onednn_limit();
  std::string value = limit.substr(limit.find('=') + 1);
  // As oneDNN reads it. Not std::toupper: in Turkish an i has another capital.
  for (char& c : value)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return value.starts_with("SSE") || value == "AVX" || value.starts_with("AVX2");
}

bool onednn_does_bf16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && !onednn_limit_excludes_bf16();
#else
  return false;
#endif
}

void keep_off_broken_tiles() {
  if (!onednn_limit().empty() || tile_fault(look_at_tiles()).empty()) return;
  ::setenv("DNNL_MAX_CPU_ISA", "AVX512_CORE_BF16", 1);
}

}  // namespace tutti
