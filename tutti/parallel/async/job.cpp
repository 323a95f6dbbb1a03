#include "tutti/parallel/async/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/file_trust.h"
#include "tutti/core/text.h"
#include "tutti/parallel/worker/item_file.h"

namespace tutti::parallel {
namespace fs = std::filesystem;
namespace {

constexpr const char* kNameKinds[] = {"index", "number", "line", "json_line"};

Json to_json(const Piece& piece) {
  Json json = Json::array();
  for (const wire::IndexRange& range : piece) json.push_back({range.first, range.count});
  return json;
}

Piece piece_from(const Json& json) {
  Piece piece;
  for (const Json& range : json)
    piece.push_back({range.at(0).get<std::uint64_t>(), range.at(1).get<std::uint64_t>()});
  return piece;
}

std::optional<Json> read_small_json(const fs::path& path) {
  try {
    return parse_json(read_file(path), path.string());
  } catch (const Error&) {  // gone meanwhile, or not there yet
    return std::nullopt;
  }
}

}  // namespace

fs::path async_folder(const fs::path& output_folder) { return output_folder / ".tutti" / "async"; }
std::string async_journal_name(const std::string& worker) { return "async-" + worker + ".journal"; }

std::function<Json(std::uint64_t)> make_item_of(const ItemNames& names, const Indices& indices) {
  if (names.kind == ItemNames::Kind::kIndex) return nullptr;
  if (names.kind == ItemNames::Kind::kNumber)
    return [](std::uint64_t index) { return Json(std::to_string(index)); };
  if (names.kind == ItemNames::Kind::kLine)
    return [items = std::make_shared<ItemFile>(names.file)](std::uint64_t index) {
      return bytes_to_json((*items)[index]);
    };
  auto lines = split(read_file(names.file), '\n');
  std::unordered_map<std::uint64_t, std::string> named;
  for (std::uint64_t i = 0; i < indices.size(); ++i)
    named.emplace(indices[i], std::move(lines.at(i)));
  return [named = std::move(named), file = names.file.string()](std::uint64_t index) {
    return parse_json(named.at(index), file);
  };
}

std::vector<Piece> cut_into_pieces(const std::vector<wire::IndexRange>& work, int n_workers,
                                   std::uint64_t batch_size) {
  std::uint64_t left = wire::total_items(work);
  const auto workers = static_cast<std::uint64_t>(std::max(1, n_workers));
  const std::uint64_t largest = std::clamp<std::uint64_t>(left / (32 * workers), 1, 1 << 14);
  std::vector<Piece> pieces;
  std::size_t at = 0;
  std::uint64_t used = 0;  // of work[at]
  while (left > 0) {
    std::uint64_t want = std::clamp<std::uint64_t>(left / (4 * workers), 1, largest);
    want = std::min(left, (want + batch_size - 1) / batch_size * batch_size);
    left -= want;
    Piece piece;
    while (want > 0) {
      const std::uint64_t take = std::min(want, work[at].count - used);
      piece.push_back({work[at].first + used, take});
      want -= take;
      used += take;
      if (used == work[at].count) ++at, used = 0;
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

void AsyncJob::write(const fs::path& folder) const {
  Json json;
  json["version"] = 1;
  json["generation"] = generation;
  json["job"] = spec.to_json();
  json["fingerprint_hash"] = fmt::format("{:016x}", fingerprint_hash);
  if (indices.is_range()) {
    json["range"] = {indices.size() > 0 ? indices[0] : 0, indices.size()};
  } else {
    json["list"] = Json::array();
    for (std::uint64_t i = 0; i < indices.size(); ++i) json["list"].push_back(indices[i]);
  }
  json["pieces"] = Json::array();
  for (const Piece& piece : pieces) json["pieces"].push_back(to_json(piece));
  json["item_names"] = kNameKinds[static_cast<int>(item_names.kind)];
  json["items_file"] = item_names.file.string();
  json["settings"] = parallel::to_json(settings);
  json["program"] = program;
  json["beat_s"] = beat_s;
  json["stale_s"] = stale_s;
  json["submitted"] = submitted;
  submitter.put_into(json["submitter"]);
  write_file_atomic(folder / "job.json", json.dump() + "\n", 0600);
}

AsyncJob AsyncJob::read(const fs::path& folder) {
  const fs::path path = folder / "job.json";
  // It says what to run: nobody else can have written it, or it is refused.
  const Json json = parse_json(read_trusted_file(path, folder.parent_path()), path.string());
  try {
    AsyncJob job;
    json.at("generation").get_to(job.generation);
    job.spec = JobSpec::from_json(json.at("job"));
    job.fingerprint_hash =
        std::strtoull(json.at("fingerprint_hash").get<std::string>().c_str(), nullptr, 16);
    if (json.contains("range"))
      job.indices = Indices(json["range"].at(0).get<std::uint64_t>(),
                            json["range"].at(1).get<std::uint64_t>());
    else
      job.indices = Indices(json.at("list").get<std::vector<std::uint64_t>>());
    for (const Json& piece : json.at("pieces")) job.pieces.push_back(piece_from(piece));
    const std::string names = json.at("item_names").get<std::string>();
    const auto* found = std::find(std::begin(kNameKinds), std::end(kNameKinds), names);
    if (found == std::end(kNameKinds)) throw DataError(path.string() + ": item_names: " + names);
    job.item_names.kind = static_cast<ItemNames::Kind>(found - std::begin(kNameKinds));
    job.item_names.file = json.at("items_file").get<std::string>();
    job.settings = parallel_settings_from(json.at("settings"));
    job.settings.async = true;
    json.at("program").get_to(job.program);
    json.at("beat_s").get_to(job.beat_s);
    json.at("stale_s").get_to(job.stale_s);
    json.at("submitted").get_to(job.submitted);
    job.submitter = ProcessIdentity::from_json(json.value("submitter", Json()));
    return job;
  } catch (const Json::exception& error) {
    throw DataError(path.string() + ": " + error.what());
  }
}

void request_stop(const fs::path& folder, const StopNote& note) {
  const Json json = {{"now", note.now}, {"exit_code", note.exit_code}, {"reason", note.reason}};
  if (note.now)  // may come after a gentler one
    write_file_quickly(folder / "stop", json.dump() + "\n");
  else
    create_exclusively(folder / "stop", json.dump() + "\n");
}

std::optional<StopNote> stop_requested(const fs::path& folder) {
  std::error_code ignored;  // absent is the usual answer
  if (!fs::exists(folder / "stop", ignored)) return std::nullopt;
  const auto json = read_small_json(folder / "stop");
  if (!json) return std::nullopt;
  return StopNote{json->value("now", false), json->value("exit_code", 0),
                  json->value("reason", "")};
}

std::string WorkerNote::to_text() const {
  Json json;
  json["name"] = name;
  json["id"] = id;
  process.put_into(json);
  supervisor.put_into(json["supervisor"]);
  json["beat"] = beat;
  json["unix"] = unix_seconds;
  json["started"] = started;
  json["phase"] = phase;
  json["job"] = job_id;
  json["items"] = items;
  json["busy_s"] = busy_s;
  json["rss_bytes"] = rss_bytes;
  json["leaving"] = leaving;
  json["left"] = left;
  if (!error.empty()) json["error"] = error;
  if (exit_code != 0) json["exit_code"] = exit_code;
  return to_json_line(json) + "\n";
}

BeatWatch::Sign WorkerNote::sign_of_life(BeatWatch& watch) const {
  if (left) return BeatWatch::Sign::kDead;
  if (const auto known = process.alive())
    return *known ? BeatWatch::Sign::kAlive : BeatWatch::Sign::kDead;
  return watch.look(name, beat);
}

bool WorkerNote::comes_back() const {
  return !left && !process.alive().value_or(true) && supervisor.alive().value_or(false);
}

fs::path worker_note_path(const fs::path& folder, const std::string& name) {
  return folder / "workers" / name;
}

std::optional<WorkerNote> read_worker_note(const fs::path& folder, const std::string& name) {
  const auto json = read_small_json(worker_note_path(folder, name));
  if (!json || !json->is_object()) return std::nullopt;
  WorkerNote note;
  note.name = name;
  note.id = json->value("id", 0);
  note.process = ProcessIdentity::from_json(*json);
  note.supervisor = ProcessIdentity::from_json(json->value("supervisor", Json()));
  note.beat = json->value("beat", std::uint64_t{0});
  note.unix_seconds = json->value("unix", 0.0);
  note.started = json->value("started", 0.0);
  note.phase = json->value("phase", "");
  note.job_id = json->value("job", "");
  note.items = json->value("items", std::uint64_t{0});
  note.busy_s = json->value("busy_s", 0.0);
  note.rss_bytes = json->value("rss_bytes", std::uint64_t{0});
  note.leaving = json->value("leaving", false);
  note.left = json->value("left", false);
  note.error = json->value("error", "");
  note.exit_code = json->value("exit_code", 0);
  return note;
}

std::vector<WorkerNote> read_worker_notes(const fs::path& folder) {
  std::vector<WorkerNote> notes;
  std::error_code ignored;  // no folder: no workers
  for (const auto& entry : fs::directory_iterator(folder / "workers", ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(".")) continue;
    if (auto note = read_worker_note(folder, name)) notes.push_back(std::move(*note));
  }
  std::sort(notes.begin(), notes.end(), [](const WorkerNote& a, const WorkerNote& b) {
    return std::pair(a.id, a.started) < std::pair(b.id, b.started);
  });
  return notes;
}

std::optional<AsyncFence> AsyncFence::load(const fs::path& output_folder) {
  const fs::path folder = async_folder(output_folder);
  std::error_code ignored;  // absent is the usual answer
  if (!fs::exists(folder / "job.json", ignored)) return std::nullopt;
  const AsyncJob job = AsyncJob::read(folder);
  ClaimBoard board(folder, job.pieces.size());
  board.refresh();
  AsyncFence fence;
  fence.piece_of_.resize(job.indices.bound());
  fence.accepted_.resize(job.pieces.size());
  for (std::size_t p = 0; p < job.pieces.size(); ++p) {
    for (const wire::IndexRange& range : job.pieces[p])
      for (std::uint64_t i = 0; i < range.count; ++i)
        if (range.first + i < fence.piece_of_.size())
          fence.piece_of_[range.first + i] = static_cast<std::uint32_t>(p + 1);
    const auto& chain = board.chain(p);
    for (std::size_t e = 0; e < chain.size(); ++e)
      if (chain[e].kind == ClaimEntry::Kind::kClaim)
        fence.accepted_[p].push_back(
            {"async-" + chain[e].worker, chain[e].start,
             e + 1 < chain.size() ? chain[e + 1].cut : std::numeric_limits<std::uint64_t>::max()});
  }
  return fence;
}

bool AsyncFence::accepts(const std::string& journal, std::uint64_t index,
                         std::uint64_t offset) const {
  if (index >= piece_of_.size() || piece_of_[index] == 0) return false;
  for (const Span& span : accepted_[piece_of_[index] - 1])
    if (span.journal == journal && offset >= span.start && offset < span.cut) return true;
  return false;
}

}  // namespace tutti::parallel
