// What driver and workers say to each other: versioned, bounded, binary, and pure functions only.
//
//   std::string bytes = encode(Hello{.worker = 3, .pid = 4711, .host = "n1"});
//   if (auto message = decode(bytes)) std::visit(handler, *message);   // nullopt: malformed
//
// One message is one ZeroMQ frame: 'T' 'U' version type, then the fields as LEB128 varints and
// length-prefixed bytes. Decoding never throws, never reads outside the buffer and never allocates
// more than a small multiple of the buffer, whatever the bytes are (fuzz/fuzz_wire.cpp). A decoded
// message borrows from the buffer it was decoded from. Why not JSON or protobuf: results of a
// million no-op items must cost nanoseconds each, and the whole format is one page.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tutti::parallel::wire {

inline constexpr std::uint8_t kVersion = 3;
inline constexpr std::size_t kMaxMessageBytes = 64 << 20;
inline constexpr std::uint64_t kMaxLeaseItems = 1 << 16;
// A result larger than this travels through a file in the run folder.
inline constexpr std::size_t kMaxInlineResult = 256 << 10;
// The most that travels over the wire when worker and driver share no folder.
inline constexpr std::size_t kMaxUnsharedResult = 16 << 20;

// Indices first .. first+count-1. count > 0, and first+count does not overflow.
struct IndexRange {
  std::uint64_t first = 0;
  std::uint64_t count = 0;
  bool operator==(const IndexRange&) const = default;
};

enum class ItemStatus : std::uint8_t {
  kOk = 0,
  kFailed = 1,    // payload: the error's text
  kOkInFile = 2,  // payload: the name of a file under RUN_FOLDER/.tutti/large/
};

// ---- worker to driver
struct Hello {
  std::uint32_t worker = 0;
  std::uint64_t pid = 0;
  std::string_view host;
};
struct Heartbeat {
  std::uint64_t rss_bytes = 0;
  std::uint64_t queued_items = 0;
  std::uint8_t time_nearly_up = 0;  // 1: leaves after the running item, before its job is ended
};
struct EnvReady {
  std::uint32_t job = 0;
  std::uint64_t build_us = 0;  // 0: the env of the job before was kept
};
struct EnvFailed {
  std::uint32_t job = 0;
  std::uint32_t exit_code = 0;  // of the error's type (core/error.h)
  std::string_view error;
};
struct ResultRecord {
  std::uint64_t index = 0;
  ItemStatus status = ItemStatus::kOk;
  std::uint64_t run_ns = 0;
  std::string_view payload;  // JSON text for kOk
  std::uint64_t start_us =
      0;  // Unix time by the worker's clock; for people, nothing is decided by it
};
struct Results {
  std::uint64_t lease = 0;
  std::vector<ResultRecord> records;
};
struct Released {  // the answer to Recall: the tail of the lease that had not been started
  std::uint64_t lease = 0;
  std::vector<IndexRange> ranges;
};
enum class TroubleKind : std::uint8_t { kTimeout = 0, kMemory = 1 };
struct Trouble {  // the worker cannot go on because of this item and asks to be replaced
  TroubleKind kind = TroubleKind::kTimeout;
  std::uint64_t lease = 0;
  std::uint64_t index = 0;
  std::string_view text;
};
struct Bye {  // leaving on purpose (SIGTERM of a scheduler); nobody's fault
  std::string_view reason;
};

// ---- driver to worker
struct Welcome {
  std::uint32_t heartbeat_ms = 500;
};
struct Job {
  std::uint32_t job = 0;
  std::string_view spec_json;
};
struct Lease {
  std::uint32_t job = 0;
  std::uint64_t lease = 0;
  std::vector<IndexRange> ranges;
};
struct Recall {
  std::uint64_t lease = 0;
  std::uint64_t max_items = 0;
};
struct Ping {};
struct Stop {};

using Message = std::variant<Hello, Heartbeat, EnvReady, EnvFailed, Results, Released, Trouble, Bye,
                             Welcome, Job, Lease, Recall, Ping, Stop>;

std::string encode(const Message& message);
std::optional<Message> decode(std::string_view bytes);

// Results are built record by record on a worker's fast path.
class ResultsBuilder {
 public:
  void add(const ResultRecord& record);
  bool empty() const noexcept { return count_ == 0; }
  std::size_t num_bytes() const noexcept { return body_.size(); }
  std::string finish(std::uint64_t lease);  // and starts over

 private:
  std::uint64_t count_ = 0;
  std::uint64_t last_start_us_ = 0;
  std::string body_;
};

std::uint64_t total_items(const std::vector<IndexRange>& ranges) noexcept;
// Takes the last `count` items off; both ends of the wire cut alike. REQUIRES: that many are there.
std::vector<IndexRange> cut_tail(std::vector<IndexRange>& ranges, std::uint64_t count);

}  // namespace tutti::parallel::wire
