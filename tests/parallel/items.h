// Items that tests run on workers: quick, slow, and badly behaved ones.
#pragma once

#include "tutti/parallel/parallel.h"
#include "tutti/parallel/runner.h"

namespace tutti::parallel::trial {

Json square(std::uint64_t index);
// Behaves as $TUTTI_TEST_ITEM_<index> says: "throw", "segfault", "exit", "hang", "stop"; else
// index.
Json mischief(std::uint64_t index);
Json one_millisecond(std::uint64_t index);  // sleeps 1 ms, returns {"index": i, "text": "item i"}
Json long_text(std::uint64_t index);        // 64 KiB
Json worker_pid(std::uint64_t index);
Json huge_number(std::uint64_t index);    // 2^63 + index
Json not_text(std::uint64_t index);       // {"bytes": "a\xff", "text": "b"}
Json start_sleeper(std::uint64_t index);  // pid of a `sleep 3599`, started by system(3)

ParallelSettings local(int n_workers);
// 300 items of one millisecond, journaled in `folder`; resumes what is there.
void drive(const std::filesystem::path& folder, int n_workers);
// Until `condition` holds or a generous deadline passes; false: it did not.
bool wait_until(const std::function<bool()>& condition, double limit_s = 60);

}  // namespace tutti::parallel::trial
