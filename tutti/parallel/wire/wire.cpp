#include "tutti/parallel/wire/wire.h"

#include <algorithm>
#include <limits>

namespace tutti::parallel::wire {
namespace {

enum class Type : std::uint8_t {
  kHello = 1,
  kHeartbeat,
  kEnvReady,
  kEnvFailed,
  kResults,
  kReleased,
  kTrouble,
  kBye,
  kWelcome = 32,
  kJob,
  kLease,
  kRecall,
  kPing,
  kStop,
};

constexpr std::size_t kMaxText = 16 << 20;  // job specs carry a config; errors carry a log tail

void put(std::string& out, std::uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

void put(std::string& out, std::string_view text) {
  put(out, text.size());
  out.append(text);
}

void put(std::string& out, const std::vector<IndexRange>& ranges) {
  put(out, ranges.size());
  for (const IndexRange& range : ranges) {
    put(out, range.first);
    put(out, range.count);
  }
}

std::string begin(Type type) {
  return {'T', 'U', static_cast<char>(kVersion), static_cast<char>(type)};
}

// Reads fields until something does not fit; from then on every read fails.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  bool done() const { return ok_ && rest_.empty(); }
  std::size_t left() const { return rest_.size(); }

  template <class T>
  bool number(T& out) {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return fail();
      const auto byte = static_cast<std::uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      if (shift == 63 && byte > 1) return fail();
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) {
        if (value > std::numeric_limits<T>::max()) return fail();
        out = static_cast<T>(value);
        return ok_;
      }
    }
    return fail();
  }

  bool text(std::string_view& out, std::size_t limit = kMaxText) {
    std::uint64_t size = 0;
    if (!number(size) || size > limit || size > rest_.size()) return fail();
    out = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }

  bool ranges(std::vector<IndexRange>& out) {
    std::uint64_t size = 0;
    if (!number(size) || size > kMaxLeaseItems || size > rest_.size() / 2) return fail();
    out.resize(size);
    std::uint64_t total = 0;
    for (IndexRange& range : out) {
      if (!number(range.first) || !number(range.count)) return false;
      if (range.count == 0 || range.count > kMaxLeaseItems) return fail();
      if (range.first > std::numeric_limits<std::uint64_t>::max() - range.count) return fail();
      total += range.count;
      if (total > kMaxLeaseItems) return fail();
    }
    return true;
  }

  template <class E>
  bool choice(E& out, E last) {
    std::uint8_t value = 0;
    if (!number(value) || value > static_cast<std::uint8_t>(last)) return fail();
    out = static_cast<E>(value);
    return true;
  }

  bool fail() {
    ok_ = false;
    rest_ = {};
    return false;
  }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

struct Encoder {
  std::string operator()(const Hello& m) const {
    std::string out = begin(Type::kHello);
    put(out, m.worker);
    put(out, m.pid);
    put(out, m.host);
    return out;
  }
  std::string operator()(const Heartbeat& m) const {
    std::string out = begin(Type::kHeartbeat);
    put(out, m.rss_bytes);
    put(out, m.queued_items);
    put(out, m.time_nearly_up);
    return out;
  }
  std::string operator()(const EnvReady& m) const {
    std::string out = begin(Type::kEnvReady);
    put(out, m.job);
    put(out, m.build_us);
    return out;
  }
  std::string operator()(const EnvFailed& m) const {
    std::string out = begin(Type::kEnvFailed);
    put(out, m.job);
    put(out, m.exit_code);
    put(out, m.error);
    return out;
  }
  std::string operator()(const Results& m) const {
    ResultsBuilder builder;
    for (const ResultRecord& record : m.records) builder.add(record);
    return builder.finish(m.lease);
  }
  std::string operator()(const Released& m) const {
    std::string out = begin(Type::kReleased);
    put(out, m.lease);
    put(out, m.ranges);
    return out;
  }
  std::string operator()(const Trouble& m) const {
    std::string out = begin(Type::kTrouble);
    put(out, static_cast<std::uint64_t>(m.kind));
    put(out, m.lease);
    put(out, m.index);
    put(out, m.text);
    return out;
  }
  std::string operator()(const Bye& m) const {
    std::string out = begin(Type::kBye);
    put(out, m.reason);
    return out;
  }
  std::string operator()(const Welcome& m) const {
    std::string out = begin(Type::kWelcome);
    put(out, m.heartbeat_ms);
    return out;
  }
  std::string operator()(const Job& m) const {
    std::string out = begin(Type::kJob);
    put(out, m.job);
    put(out, m.spec_json);
    return out;
  }
  std::string operator()(const Lease& m) const {
    std::string out = begin(Type::kLease);
    put(out, m.job);
    put(out, m.lease);
    put(out, m.ranges);
    return out;
  }
  std::string operator()(const Recall& m) const {
    std::string out = begin(Type::kRecall);
    put(out, m.lease);
    put(out, m.max_items);
    return out;
  }
  std::string operator()(const Ping&) const { return begin(Type::kPing); }
  std::string operator()(const Stop&) const { return begin(Type::kStop); }
};

bool read(Reader& in, Hello& m) {
  return in.number(m.worker) && in.number(m.pid) && in.text(m.host, 1024);
}
bool read(Reader& in, Heartbeat& m) {
  return in.number(m.rss_bytes) && in.number(m.queued_items) && in.number(m.time_nearly_up);
}
bool read(Reader& in, EnvReady& m) { return in.number(m.job) && in.number(m.build_us); }
bool read(Reader& in, EnvFailed& m) {
  return in.number(m.job) && in.number(m.exit_code) && in.text(m.error);
}
bool read(Reader& in, Results& m) {
  std::uint64_t count = 0;
  // A record takes at least five bytes, so a huge count cannot make us allocate.
  if (!in.number(m.lease) || !in.number(count) || count > kMaxLeaseItems || count > in.left() / 5)
    return in.fail();
  m.records.resize(count);
  std::uint64_t last_start_us = 0;
  for (ResultRecord& record : m.records) {
    if (!in.number(record.index) || !in.choice(record.status, ItemStatus::kOkInFile) ||
        !in.number(record.start_us) || !in.number(record.run_ns) || !in.text(record.payload))
      return false;
    last_start_us = record.start_us += last_start_us;
  }
  return true;
}
bool read(Reader& in, Released& m) { return in.number(m.lease) && in.ranges(m.ranges); }
bool read(Reader& in, Trouble& m) {
  return in.choice(m.kind, TroubleKind::kMemory) && in.number(m.lease) && in.number(m.index) &&
         in.text(m.text);
}
bool read(Reader& in, Bye& m) { return in.text(m.reason); }
bool read(Reader& in, Welcome& m) { return in.number(m.heartbeat_ms); }
bool read(Reader& in, Job& m) { return in.number(m.job) && in.text(m.spec_json); }
bool read(Reader& in, Lease& m) {
  return in.number(m.job) && in.number(m.lease) && in.ranges(m.ranges);
}
bool read(Reader& in, Recall& m) { return in.number(m.lease) && in.number(m.max_items); }
bool read(Reader&, Ping&) { return true; }
bool read(Reader&, Stop&) { return true; }

template <class T>
std::optional<Message> decode_as(std::string_view body) {
  T message;
  Reader in(body);
  if (!read(in, message) || !in.done()) return std::nullopt;
  return Message(std::move(message));
}

}  // namespace

std::string encode(const Message& message) { return std::visit(Encoder{}, message); }

std::optional<Message> decode(std::string_view bytes) {
  if (bytes.size() < 4 || bytes.size() > kMaxMessageBytes || bytes[0] != 'T' || bytes[1] != 'U' ||
      static_cast<std::uint8_t>(bytes[2]) != kVersion)
    return std::nullopt;
  const std::string_view body = bytes.substr(4);
  switch (static_cast<Type>(bytes[3])) {
    case Type::kHello:
      return decode_as<Hello>(body);
    case Type::kHeartbeat:
      return decode_as<Heartbeat>(body);
    case Type::kEnvReady:
      return decode_as<EnvReady>(body);
    case Type::kEnvFailed:
      return decode_as<EnvFailed>(body);
    case Type::kResults:
      return decode_as<Results>(body);
    case Type::kReleased:
      return decode_as<Released>(body);
    case Type::kTrouble:
      return decode_as<Trouble>(body);
    case Type::kBye:
      return decode_as<Bye>(body);
    case Type::kWelcome:
      return decode_as<Welcome>(body);
    case Type::kJob:
      return decode_as<Job>(body);
    case Type::kLease:
      return decode_as<Lease>(body);
    case Type::kRecall:
      return decode_as<Recall>(body);
    case Type::kPing:
      return decode_as<Ping>(body);
    case Type::kStop:
      return decode_as<Stop>(body);
  }
  return std::nullopt;
}

void ResultsBuilder::add(const ResultRecord& record) {
  ++count_;
  put(body_, record.index);
  put(body_, static_cast<std::uint64_t>(record.status));
  put(body_, record.start_us - last_start_us_);  // a few bytes; a clock set back wraps around
  last_start_us_ = record.start_us;
  put(body_, record.run_ns);
  put(body_, record.payload);
}

std::string ResultsBuilder::finish(std::uint64_t lease) {
  std::string out = begin(Type::kResults);
  put(out, lease);
  put(out, count_);
  out += body_;
  count_ = 0;
  last_start_us_ = 0;
  body_.clear();
  return out;
}

std::uint64_t total_items(const std::vector<IndexRange>& ranges) noexcept {
  std::uint64_t total = 0;
  for (const IndexRange& range : ranges) total += range.count;
  return total;
}

std::vector<IndexRange> cut_tail(std::vector<IndexRange>& ranges, std::uint64_t count) {
  std::vector<IndexRange> cut;
  while (count > 0) {
    IndexRange& last = ranges.back();
    const std::uint64_t n = std::min(count, last.count);
    cut.insert(cut.begin(), {last.first + last.count - n, n});
    last.count -= n;
    count -= n;
    if (last.count == 0) ranges.pop_back();
  }
  return cut;
}

}  // namespace tutti::parallel::wire
