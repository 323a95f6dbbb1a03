// Slurm's host lists: "rack[0-1]node[00-03,7],login" and the counts "8(x2),4" that go with them.
//
//   expand_nodelist("a[1],b[2-3]")   -> a1 b2 b3
//   expand_task_counts("8(x2),4")    -> 8 8 4
//
// A real parser rather than `scontrol show hostnames`, which is missing in containers, and rather
// than a regular expression, which gets several bracket groups wrong. Several groups multiply, the
// rightmost running fastest, as Slurm does. Pure; throws ConfigError with the position of the
// fault.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti::launch {

constexpr std::size_t kMaxHosts = 1 << 20;  // a slip like n[0-999999999] is an error, not a crash

std::vector<std::string> expand_nodelist(std::string_view text);
std::vector<int> expand_task_counts(std::string_view text);

}  // namespace tutti::launch
