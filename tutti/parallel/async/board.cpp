#include "tutti/parallel/async/board.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/program.h"

namespace tutti::parallel {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kDoneHint = "done";
constexpr const char* kKindNames[] = {"claim", "released", "done"};

// A name beside `path` that no other thread, process or host uses.
fs::path private_name(const fs::path& path) {
  static std::atomic<unsigned> counter{0};
  return path.parent_path() / fmt::format(".new-{}-{}-{}", host_name(), ::getpid(), counter++);
}

void write_new(const fs::path& path, const std::string& content) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd) throw_errno("cannot create " + path.string(), errno);
  write_all(fd.get(), content, path);
}

}  // namespace

bool create_exclusively(const fs::path& path, const std::string& content) {
  const fs::path own = private_name(path);
  write_new(own, content);
  const bool linked = ::link(own.c_str(), path.c_str()) == 0;
  const int failure = errno;
  // Over NFS the answer to a link that was made may get lost; the count of links tells.
  struct stat info {};
  const bool made = linked || (::stat(own.c_str(), &info) == 0 && info.st_nlink == 2);
  ::unlink(own.c_str());
  if (!made && failure != EEXIST) throw_errno("cannot create " + path.string(), failure);
  return made;
}

void write_file_quickly(const fs::path& path, const std::string& content) {
  const fs::path own = private_name(path);
  write_new(own, content);
  if (::rename(own.c_str(), path.c_str()) == 0) return;
  const int failure = errno;
  ::unlink(own.c_str());
  throw_errno("cannot replace " + path.string(), failure);
}

std::string ClaimEntry::to_text() const {
  Json json;
  json["kind"] = kKindNames[static_cast<int>(kind)];
  json["worker"] = worker;
  json["seq"] = seq;
  json["start"] = start;
  json["cut"] = cut;
  if (suspect) json["suspect"] = *suspect;
  if (strikes > 0) json["strikes"] = strikes;
  return json.dump() + "\n";
}

ClaimEntry ClaimEntry::from_text(const std::string& text, const std::string& where) {
  const Json json = parse_json(text, where);
  ClaimEntry entry;
  const std::string kind = json.value("kind", "");
  const auto* found = std::find(std::begin(kKindNames), std::end(kKindNames), kind);
  if (found == std::end(kKindNames)) throw DataError(where + ": not a claim");
  entry.kind = static_cast<Kind>(found - std::begin(kKindNames));
  entry.worker = json.value("worker", "");
  entry.seq = json.value("seq", std::uint64_t{0});
  entry.start = json.value("start", std::uint64_t{0});
  entry.cut = json.value("cut", std::uint64_t{0});
  if (json.contains("suspect")) entry.suspect = json["suspect"].get<std::uint64_t>();
  entry.strikes = json.value("strikes", 0);
  return entry;
}

ClaimBoard::ClaimBoard(fs::path async_folder, std::size_t num_chains)
    : folder_(async_folder / "claims"),
      lengths_(num_chains),
      chains_(num_chains),
      done_(num_chains) {}

fs::path ClaimBoard::entry_path(std::size_t chain, std::size_t epoch) const {
  return folder_ / fmt::format("{}.{}", chain, epoch);
}

void ClaimBoard::refresh() {
  std::error_code failure;
  fs::directory_iterator entries(folder_, failure);
  if (failure) throw_errno("cannot list " + folder_.string(), failure.value());
  for (const auto& entry : entries) {
    const std::string name = entry.path().filename();
    std::size_t chain = 0;
    std::size_t epoch = 0;
    const char* end = name.data() + name.size();
    const auto first = std::from_chars(name.data(), end, chain);
    if (first.ec != std::errc() || first.ptr == end || *first.ptr != '.') continue;
    if (chain < done_.size() && std::string_view(first.ptr + 1, end) == kDoneHint)
      done_[chain] = true;
    if (std::from_chars(first.ptr + 1, end, epoch).ec != std::errc()) continue;
    if (chain < lengths_.size()) lengths_[chain] = std::max(lengths_[chain], epoch + 1);
  }
}

const ClaimBoard::Chain& ClaimBoard::chain(std::size_t chain) {
  Chain& entries = chains_[chain];
  while (entries.size() < lengths_[chain]) {
    const fs::path path = entry_path(chain, entries.size());
    entries.push_back(ClaimEntry::from_text(read_file(path), path.string()));
  }
  return entries;
}

bool ClaimBoard::is_done(std::size_t number) {
  if (done_[number] || lengths_[number] == 0) return done_[number];
  done_[number] = chain(number).back().kind == ClaimEntry::Kind::kDone;
  return done_[number];
}

bool ClaimBoard::is_superseded(std::size_t chain, std::size_t epoch) const {
  struct stat info {};
  return ::stat(entry_path(chain, epoch + 1).c_str(), &info) == 0;
}

bool ClaimBoard::append(std::size_t chain, std::size_t epoch, const ClaimEntry& entry) {
  const bool made = create_exclusively(entry_path(chain, epoch), entry.to_text());
  lengths_[chain] = std::max(lengths_[chain], epoch + 1);
  if (made && entry.kind == ClaimEntry::Kind::kDone) {
    // A hint, no more: without it one file has to be read. With it, who is done is known from the
    // listing, however many pieces and workers there are.
    const fs::path hint = folder_ / fmt::format("{}.{}", chain, kDoneHint);
    const UniqueFd fd(::open(hint.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    done_[chain] = true;
  }
  return made;
}

}  // namespace tutti::parallel
