#include "tutti/parallel/wire/log_tail.h"

#include <algorithm>
#include <fstream>

namespace tutti::parallel {

std::string log_tail(const std::filesystem::path& log) {
  constexpr std::streamoff kTail = 2000;
  std::ifstream file(log, std::ios::binary);
  if (!file) return "";
  file.seekg(0, std::ios::end);
  const std::streamoff size = file.tellg();
  file.seekg(std::max<std::streamoff>(0, size - kTail));
  std::string tail(static_cast<std::size_t>(std::min(size, kTail)), '\0');
  file.read(tail.data(), static_cast<std::streamsize>(tail.size()));
  while (!tail.empty() && tail.back() == '\n') tail.pop_back();
  return tail;
}

}  // namespace tutti::parallel
