// The processes that a worker's items start, wherever these run to: none may outlive its item, and
// none its worker. Internal to the room.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tutti::parallel {

// Makes this process answerable for all that it starts: a small process beside it, the keeper, ends
// its descendants when it is gone, however it went. (PDEATHSIG reaches children only.) They are known
// by their cgroup where one can be had (cgroup.h), else by a variable in their environment, also in
// a session of their own. `temporary`, where it is not empty, is a folder of our parent: the keeper removes it
// when both are gone, as a parent that was killed cannot. Must run before any thread exists.
void answer_for_descendants(const std::filesystem::path& temporary = {});

// For items that are commands. From now on orphans among the descendants become children of this
// process; nobody else will wait for them. Nothing where it is not answerable for its descendants: a
// driver whose workers are threads. Returns the children there are now.
std::vector<pid_t> adopt_orphans();
// Ends the children that are not in `spare`, and whatever they leave behind.
void end_children_except(const std::vector<pid_t>& spare);

// Memory of a process and everything below it: a command that an item runs counts as the item. Pages
// that several of them share count once. Up to `limit` the plain sum of resident memory is the
// answer, which is cheap to have and never too low. Where the worker's cgroup counts memory, that is
// the answer for this process.
std::uint64_t tree_memory_bytes(pid_t pid, std::uint64_t limit = 0);

}  // namespace tutti::parallel
