#include "tests/parallel/items.h"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "tutti/core/file.h"
#include "tutti/core/text.h"
#include "tutti/parallel/run/folder_run.h"

namespace tutti::parallel::trial {

Json square(std::uint64_t index) { return index * index; }

Json mischief(std::uint64_t index) {
  const char* way = std::getenv(("TUTTI_TEST_ITEM_" + std::to_string(index)).c_str());
  const std::string what = way == nullptr ? "" : way;
  if (what == "throw") throw TaskError("item " + std::to_string(index) + " does not like you");
  if (what == "int") throw 42;
  if (what == "segfault") ::raise(SIGSEGV);
  if (what == "exit") ::_exit(3);
  if (what == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
  if (what == "stop") ::raise(SIGSTOP);
  if (what == "eat") {
    std::string big;
    for (;;) big.append(16 << 20, 'x');
  }
  return index;
}

Json one_millisecond(std::uint64_t index) {
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return {{"index", index}, {"text", "item " + std::to_string(index)}};
}

Json long_text(std::uint64_t index) {
  return std::string(64 << 10, static_cast<char>('a' + index % 26));
}

Json worker_pid(std::uint64_t) { return ::getpid(); }

Json huge_number(std::uint64_t index) { return (std::uint64_t{1} << 63) + index; }

Json not_text(std::uint64_t) { return {{"bytes", "a\xff"}, {"text", "b"}}; }

Json start_sleeper(std::uint64_t) {
  const TempFolder folder;
  const std::string file = (folder.path() / "pid").string();
  if (std::system(("sleep 3599 >/dev/null 2>&1 & echo $! >" + shell_quote(file)).c_str()) != 0)
    throw TaskError("no shell");
  return std::stoi(read_file(file));
}

TUTTI_REGISTER_FUNCTION(square);
TUTTI_REGISTER_FUNCTION(huge_number);
TUTTI_REGISTER_FUNCTION(not_text);
TUTTI_REGISTER_FUNCTION(start_sleeper);
TUTTI_REGISTER_FUNCTION(mischief);
TUTTI_REGISTER_FUNCTION(one_millisecond);
TUTTI_REGISTER_FUNCTION(worker_pid);
TUTTI_REGISTER_FUNCTION(long_text);

ParallelSettings local(int n_workers) {
  ParallelSettings settings;
  settings.n_workers = n_workers;
  return settings;
}

void drive(const std::filesystem::path& path, int n_workers) {
  const Indices items = range(300);
  RunFolder folder(path, {{"function", "one_millisecond"}}, items, {});
  JobSpec job;
  job.function = "one_millisecond";
  std::unique_ptr<Client> client;
  const auto make_client = [&]() -> Client& {
    client = std::make_unique<Client>(local(n_workers), ClientOptions{.run_folder = folder.path()});
    return *client;
  };
  run_in_folder(folder, make_client, job, items, {});
}

bool wait_until(const std::function<bool()>& condition, double limit_s) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit_s);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace tutti::parallel::trial
