#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "tests/parallel/cluster/bed.h"
#include "tutti/parallel/registry.h"

namespace tutti::parallel::bed_items {

Json hundred_bytes(std::uint64_t index) {
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return {{"index", index}, {"text", std::string(80, static_cast<char>('a' + index % 26))}};
}

Json where(std::uint64_t) {
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const auto text = [](const char* name) {
    return std::string(std::getenv(name) == nullptr ? "" : std::getenv(name));
  };
  return {{"host", host.data()},
          {"pid", ::getpid()},
          {"job", text("TUTTI_JOB_ID")},
          {"gpus", text("CUDA_VISIBLE_DEVICES")}};
}

TUTTI_REGISTER_FUNCTION(hundred_bytes);
TUTTI_REGISTER_FUNCTION(where);

}  // namespace tutti::parallel::bed_items
