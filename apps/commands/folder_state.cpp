#include "apps/commands/folder_state.h"

#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/text.h"
#include "tutti/parallel/async/run.h"
#include "tutti/parallel/folder/last_words.h"
#include "tutti/parallel/folder/run_folder.h"
#include "tutti/parallel/run/job_record.h"
#include "tutti/parallel/wire/log_tail.h"
#include "tutti/parallel/worker/item_file.h"

namespace tutti::apps {

namespace {

constexpr std::size_t kJobsWithWords = 3;  // of those that ended

void add_ended(const std::vector<parallel::JobStatus>& ended, Json& jobs) {
  std::size_t with_words = 0;
  for (const parallel::JobStatus& job : ended) {
    const bool failed = job.phase == parallel::JobPhase::kFailed;
    Json& out = jobs.emplace_back(Json{{"id", job.job_id},
                                       {"phase", failed ? "failed" : "ended"},
                                       {"reason", job.reason},
                                       {"log", job.log.string()}});
    if (with_words == kJobsWithWords) continue;
    if (std::string words = parallel::log_tail(job.log); !words.empty()) {
      out["log_tail"] = std::move(words);
      ++with_words;
    }
  }
}

// What the files of an asynchronous run tell, where there is one.
void add_async(const std::filesystem::path& folder, CommandRunner* scheduler,
               parallel::BeatWatch* watch, Json& state) {
  const auto async = scheduler != nullptr ? parallel::async_state(folder, true, watch, *scheduler)
                                          : parallel::async_state(folder, false, watch);
  if (!async) return;
  state["state"] = async->state;
  Json& out = state["async"];
  out["all_done"] = async->all_pieces_done;
  out["reason"] = async->reason;
  out["exit_code"] = async->exit_code;
  if (!async->unanswered.empty()) out["unanswered"] = async->unanswered;
  out["workers"] = Json::array();
  const double now = Clock::system().unix_seconds();
  for (const parallel::WorkerNote& note : async->workers)
    out["workers"].push_back({{"id", note.id},
                              {"host", note.process.host},
                              {"pid", note.process.pid},
                              {"job", note.job_id},
                              {"phase", note.phase},
                              {"stands_still", note.process.stands_still()},
                              {"items", note.items},
                              {"busy_s", note.busy_s},
                              {"up_s", std::max(0.0, now - note.started)},
                              {"rss_bytes", note.rss_bytes}});
  out["jobs"] = Json::array();
  for (const parallel::JobStatus& job : async->jobs)
    out["jobs"].push_back({{"id", job.job_id},
                           {"phase", !async->unanswered.empty()                  ? "unknown"
                                     : job.phase == parallel::JobPhase::kPending ? "pending"
                                                                                 : "running"},
                           {"reason", job.reason}});
  if (async->state == "queued" || async->state == "died") add_ended(async->ended, out["jobs"]);
  if (is_over(state)) out["exit_code"] = exit_code_of(state);  // what `wait` ends with
}

// The owner's lock, items and keys are not for others to read.
bool is_hidden(const std::filesystem::path& folder) {
  return ::access((folder / ".tutti").c_str(), X_OK) != 0 && errno == EACCES;
}

std::string owner_of(const std::filesystem::path& folder) {
  struct stat info {};
  if (::stat(folder.c_str(), &info) != 0) return "another user";
  const passwd* owner = ::getpwuid(info.st_uid);
  return owner != nullptr ? owner->pw_name : fmt::format("user {}", info.st_uid);
}

// `infer` has an output folder per test set, one level further down.
std::string advice_for_no_run(const std::filesystem::path& folder) {
  constexpr std::size_t kMost = 5;
  std::vector<std::string> below;
  std::error_code none;  // no such folder: nothing below it
  for (const auto& entry : std::filesystem::directory_iterator(folder, none))
    if (std::filesystem::exists(entry.path() / "manifest.json", none))
      below.push_back(entry.path().string());
  if (below.empty()) return "check the path";
  std::sort(below.begin(), below.end());
  const std::size_t more = below.size() - std::min(kMost, below.size());
  below.resize(below.size() - more);
  return fmt::format("output folders below it: {}{}", join(below, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

Json state_of(const std::filesystem::path& folder, CommandRunner* scheduler, FolderWatch* watch,
              bool count) {
  const Json manifest = parallel::read_manifest(folder);
  if (!manifest.is_object()) refuse_if_hidden(folder, "look at");
  if (!manifest.is_object())
    throw DataError(folder.string() + ": no manifest.json: not an output folder of map or infer",
                    advice_for_no_run(folder));
  const auto holder = watch != nullptr ? parallel::FolderLock::holder(folder, watch->driver)
                                       : parallel::FolderLock::holder(folder);
  const bool hidden = is_hidden(folder);
  Json state;
  if (hidden) state["owner"] = owner_of(folder);
  // A manifest that says "running" without a living driver was left by a kill -9.
  const std::string written = manifest.value("state", "?");
  // Others can only repeat what is written.
  state["state"] = written == "running" && !holder.alive && !hidden ? "died" : written;
  if (count) {
    std::map<std::uint64_t, std::string> reasons;
    parallel::FolderCounts counts;
    try {
      counts = parallel::count_items(folder, &reasons);
    } catch (const IoError&) {
      if (!hidden) throw;  // journals may be for their owner alone
    }
    // Which records of asynchronous workers count is in what others cannot see.
    const auto known = [&](const char* key, std::uint64_t counted) {
      return std::max(counted, hidden ? manifest.value(key, std::uint64_t{0}) : 0);
    };
    state["items"] = known("items", counts.total);
    state["ok"] = known("ok", counts.ok);
    state["failed"] = known("failed", counts.failed);
    if (counts.failed > 0) state["failures"] = failed_items(folder, reasons);
  }
  state["created"] = manifest.value("created", "");
  state["updated"] = manifest.value("updated", "");
  for (const char* key : {"reason", "exit_code"})
    if (manifest.contains(key)) state[key] = manifest[key];
  if (!holder.alive) {
    if (state["state"] == "died") state.update(parallel::read_last_words(folder));
    add_async(folder, scheduler, watch != nullptr ? &watch->workers : nullptr, state);
    if (hidden) return state;
    const auto jobs = parallel::JobRecord::read(std::filesystem::absolute(folder)).job_ids;
    if (!jobs.empty()) state["jobs_left"] = jobs;
    return state;
  }
  state["driver"] = {{"host", holder.host}, {"pid", holder.pid}, {"since", holder.since}};
  if (!holder.sure) state["driver"]["seen_alive"] = false;  // of another host: one look is no proof
  if (Json live = parallel::read_status(folder); live.is_object()) state["live"] = std::move(live);
  return state;
}

}  // namespace

Json folder_state(const std::filesystem::path& folder, CommandRunner* scheduler) {
  return state_of(folder, scheduler, nullptr, true);
}

Json folder_state(const std::filesystem::path& folder, FolderWatch& watch) {
  return state_of(folder, &watch.scheduler, &watch, true);
}

Json folder_activity(const std::filesystem::path& folder, FolderWatch& watch) {
  watch.scheduler.ask_again();
  return state_of(folder, &watch.scheduler, &watch, false);
}

std::string reason_of(const Json& state) {
  if (state.contains("async")) return state["async"].value("reason", "");
  return state.value("reason", "");
}

void print_way_on(std::FILE* out, const Json& state) {
  const std::string word = state.value("state", "");
  if (is_over(state) && (word == "stopped" || word == "died"))
    std::fprintf(out, "the same command goes on with what is left\n");
}

std::string about_silence(const Json& state) {
  if (!state.contains("async")) return "";
  const Json workers = state["async"].value("workers", Json::array());
  if (!workers.empty() && std::all_of(workers.begin(), workers.end(), [](const Json& worker) {
        return worker.value("stands_still", false);
      })) {
    const long pid = workers[0].value("pid", 0L);
    return fmt::format(
        "nobody works: {} left, and stopped by a signal; on {}, kill -CONT {} wakes worker {}",
        workers.size() == 1 ? "one worker is" : fmt::format("{} workers are", workers.size()),
        workers[0].value("host", "?"), pid, workers[0].value("id", 0));
  }
  if (!state["async"].contains("unanswered")) return "";
  return fmt::format("the scheduler does not answer: {}; shown is what the folder knows",
                     state["async"]["unanswered"].get<std::string>());
}

void refuse_if_hidden(const std::filesystem::path& folder, const std::string& verb) {
  if (!is_hidden(folder)) return;
  throw IoError(fmt::format("{}: the run belongs to {}, and only its owner can {} it",
                            folder.string(), owner_of(folder), verb),
                "ask its owner; tutti status shows what is known to all");
}

parallel::ItemNames item_names(const std::filesystem::path& folder, const Json& manifest) {
  using Kind = parallel::ItemNames::Kind;
  const auto named = parallel::item_names_path(folder);
  const auto items = parallel::item_file_path(folder);
  if (std::filesystem::exists(named)) return {Kind::kJsonLine, named};
  if (std::filesystem::exists(items)) return {Kind::kLine, items};
  const bool is_map = manifest.at("fingerprint").contains("command");
  return {is_map ? Kind::kNumber : Kind::kIndex, {}};
}

Json failed_items(const std::filesystem::path& folder,
                  const std::map<std::uint64_t, std::string>& reasons) {
  Json failures = Json::array();
  for (const auto& [index, reason] : reasons)
    failures.push_back({{"index", index}, {"item", index}, {"reason", reason}});
  try {
    const Json manifest = parallel::read_manifest(folder);
    const auto first = manifest.value("first", std::uint64_t{0});
    const auto count = manifest.value("items", std::uint64_t{0});
    const auto item_of =
        parallel::make_item_of(item_names(folder, manifest), parallel::range(first, first + count));
    if (!item_of) return failures;
    for (Json& failure : failures) failure["item"] = item_of(failure["index"]);
  } catch (const std::exception&) {  // the names are the owner's; others see numbers
  }
  return failures;
}

void print_failures(std::FILE* out, const std::filesystem::path& folder, const Json& state) {
  constexpr std::size_t kMost = 5;
  const Json failures = state.value("failures", Json::array());
  const std::size_t shown = std::min(kMost, failures.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const std::string reason = failures[i].at("reason");
    std::fprintf(out, "item %s failed: %s\n", to_json_line(failures[i].at("item")).c_str(),
                 parallel::first_line(reason).c_str());
  }
  const std::uint64_t all = state.value("failed", std::uint64_t{0});
  const std::uint64_t more = all - std::min<std::uint64_t>(all, shown);
  const auto file = folder / "failed.jsonl";  // written when the run ends
  std::error_code none;
  const bool written = shown > 0 && std::filesystem::exists(file, none);
  if (more > 0) std::fprintf(out, "and %llu more", static_cast<unsigned long long>(more));
  if (more > 0) std::fputs(written ? "; " : "\n", out);
  if (written) std::fprintf(out, "reasons are in %s\n", file.c_str());
}

void print_jobs(std::FILE* out, const Json& state) {
  constexpr std::size_t kMostEnded = 5;
  std::size_t ended = 0;
  for (const Json& job : state.at("async").at("jobs")) {
    if (job.contains("log") && ++ended > kMostEnded) continue;
    std::fprintf(out, "  job %s  %s  %s\n", job.value("id", "").c_str(),
                 job.value("phase", "").c_str(), job.value("reason", "").c_str());
    if (!job.contains("log_tail")) continue;
    std::fprintf(out, "    end of %s:\n", job.value("log", "").c_str());
    for (const std::string& line : split(job["log_tail"].get<std::string>(), '\n'))
      std::fprintf(out, "    | %s\n", line.c_str());
  }
  if (ended > kMostEnded) std::fprintf(out, "  and %zu more that ended\n", ended - kMostEnded);
}

std::string describe_counts(const std::filesystem::path& folder, const Json& state) {
  const auto number = [&](const char* key) { return state.value(key, std::uint64_t{0}); };
  return fmt::format("{}: {}, {} of {} items ok, {} failed", folder.string(),
                     state.value("state", "?"), number("ok"), number("items"), number("failed"));
}

bool is_over(const Json& state) {
  if (state.contains("driver")) return false;
  const std::string word = state.value("state", "");
  return word != "queued" && !(state.contains("async") && word == "running");
}

int exit_code_of(const Json& state) {
  if (state.contains("async") && state.value("state", "") != "done")
    if (const int code = state["async"].value("exit_code", 0); code != 0) return code;
  if (const int code = state.value("exit_code", 0); code != 0 && !state.contains("async"))
    return code;
  if (state.value("failed", std::uint64_t{0}) > 0) return static_cast<int>(ExitCode::kItemsFailed);
  return static_cast<int>(state.value("state", "") == "done" ? ExitCode::kDone
                                                             : ExitCode::kStoppedResumable);
}

}  // namespace tutti::apps
