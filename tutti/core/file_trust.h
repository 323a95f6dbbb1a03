// Files that decide what runs as this user, kept apart from what other users could have put there.
//
//   make_private_folder(run / ".tutti");                  // 0700 whatever the umask
//   std::string text = read_trusted_file(run / ".tutti/connect.json");
//
// Trusted is what belongs to this user or to root and that nobody else may write. The folders above
// may be anybody's (a project folder that a group shares is an ordinary place for results): what
// others could swap in there belongs to them and is refused for that.
//
// All functions throw IoError that says which path, whose it is, and what to do. Thread-safe.
#pragma once

#include <filesystem>
#include <string>

#include "tutti/core/file.h"

namespace tutti {

// A folder of this user alone: made with mode 0700, an existing one is brought to it. Folders above
// it are made as usual. Throws when it belongs to somebody else or is a symbolic link.
void make_private_folder(const std::filesystem::path& folder);

// A folder that others may read, as the umask has it, and only this user may change. An existing one
// of this user loses the right of others to write. Root's own is fine while others cannot change
// what is in it (the sticky bit of /tmp does that).
void make_own_folder(const std::filesystem::path& folder);

// The content of a file of this user, which others may write as little as the folder it is in and
// those above it up to `top`. REQUIRES: `top` is one of them (empty: the folder of the file).
std::string read_trusted_file(const std::filesystem::path& path,
                              const std::filesystem::path& top = {});
// The same, open for reading.
UniqueFd open_trusted_file(const std::filesystem::path& path,
                           const std::filesystem::path& top = {});

// A user number that counts as ours as well, for file systems and containers that show our files as
// somebody else's. Only the environment of the process can say so.
inline constexpr char kTrustedUserVariable[] = "TUTTI_TRUSTED_UID";

}  // namespace tutti
