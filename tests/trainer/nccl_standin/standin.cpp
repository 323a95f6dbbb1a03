// A strict stand-in for NCCL, for tests: its names, for 2 to 8 ranks on one GPU, which NCCL refuses.
// Tensors go through host memory that the ranks share; what NCCL answers with a hang, a crash or
// wrong numbers, this answers with a line and exit code 97:
//
//   - calls whose kind, count, type, operation, root or order differ between ranks
//   - a communicator that was aborted, is not ready yet, or whose last call is still in progress
//   - buffers that overlap or are not on the communicator's GPU; the default stream
//   - a rank or a world size that does not fit the others'
//
// NCCL_STANDIN_FAULT="WHAT RANK N" disturbs this process's first communicator, if it is RANK there:
// "lag 1 20" delays every operation by 20 ms, "hang 1 7" never ends operation 7 nor those after it,
// "error 1 7" does the same and reports an error.
//
// One operation is one number, counted alike by all ranks. A worker thread per communicator compares
// calls and adds numbers up; the caller's stream does the rest, in order with what it was given:
//
//   stream: wait may_write | input -> shared | arrived | wait ready | result -> output | finished
//   worker: all finished the one before -> may_write; all arrived -> compare, add up -> ready
//
// What it does not judge: the order of operations of two communicators against each other.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>

#include "tests/trainer/nccl_standin/device.h"

namespace nccl_standin {
namespace {

enum Result { kSuccess = 0, kInvalidArgument = 4, kRemoteError = 6, kInProgress = 7 };
enum class Kind : int { kAllReduce, kBroadcast, kAllGather, kReduceScatter };
enum Op { kSum, kProd, kMax, kMin, kAvg, kNumOps };

constexpr int kMaxRanks = 8;
constexpr std::size_t kSlotBytes = 1 << 20;  // larger operations go in pieces
constexpr Word kRing = 1024;                 // calls a rank may be ahead of the slowest

const char* name_of(Kind kind) {
  static const char* kNames[] = {"all_reduce", "broadcast", "all_gather", "reduce_scatter"};
  return kNames[static_cast<int>(kind)];
}
struct Type {
  const char* name;
  std::size_t size;
};
constexpr Type kTypes[] = {{"int8", 1},    {"uint8", 1},   {"int32", 4},   {"uint32", 4},
                           {"int64", 8},   {"uint64", 8},  {"float16", 2}, {"float32", 4},
                           {"float64", 8}, {"bfloat16", 2}};

struct Call {
  Kind kind;
  int type;
  int op;    // of reductions, else 0
  int root;  // of broadcasts, else 0
  std::uint64_t count;
  std::uint64_t offset;  // of this piece

  bool operator==(const Call&) const = default;
  std::string describe() const {
    static const char* kOps[] = {"sum", "prod", "max", "min", "avg"};
    std::string text = fmt::format("{} of {} {}", name_of(kind), count, kTypes[type].name);
    if (kind == Kind::kAllReduce || kind == Kind::kReduceScatter)
      text += fmt::format(" ({})", kOps[op]);
    if (kind == Kind::kBroadcast) text += fmt::format(" from rank {}", root);
    return text;
  }
};

// What one rank shows the others.
struct alignas(128) Seat {
  std::atomic<int> num_ranks;  // 0: nobody sits here yet
  std::atomic<Word> called;
  std::atomic<bool> left;        // aborted
  std::atomic<Word> left_after;  // the last operation that was still in order
  // Touched by streams:
  Word arrived, finished;  // read by all
  Word may_write, ready;   // read by the own stream
  Call calls[kRing];
};
struct Room {
  Seat seats[kMaxRanks];
  alignas(4096) char input[kMaxRanks][kSlotBytes];
  alignas(4096) char result[kMaxRanks][kSlotBytes];
};

Word load(Word& word) { return std::atomic_ref<Word>(word).load(std::memory_order_acquire); }
void store(Word& word, Word value) {
  std::atomic_ref<Word>(word).store(value, std::memory_order_release);
}

// 16 bits as floats and back, to the nearest, ties to even.
struct Bfloat16 {
  std::uint16_t bits = 0;
  Bfloat16() = default;
  explicit Bfloat16(float value) {
    const auto wide = std::bit_cast<std::uint32_t>(value);
    bits = std::isnan(value) ? 0x7fc0
                             : static_cast<std::uint16_t>((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
  }
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
};
struct Half {
  std::uint16_t bits = 0;
  Half() = default;
  explicit Half(float value) {
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const float size = std::fabs(value);
    if (std::isnan(value)) {
      bits = 0x7e00;
    } else if (size >= 65520) {
      bits = sign | 0x7c00;  // infinite
    } else {
      // The steps between numbers: 2^-24 below 2^-14, then 2^-10 of the power of two.
      const int power = size < std::ldexp(1.0f, -14) ? -14 : std::ilogb(size);
      const float steps = std::nearbyint(std::ldexp(size, 10 - power));
      const int field = static_cast<int>(steps) + ((power + 14) << 10);
      bits = static_cast<std::uint16_t>(sign | field);
    }
  }
  explicit operator float() const {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float size = 0;
    if (exponent == 31)
      size = fraction ? NAN : INFINITY;
    else if (exponent == 0)
      size = std::ldexp(static_cast<float>(fraction), -24);
    else
      size = std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
    return bits & 0x8000 ? -size : size;
  }
};

template <class T>
void add_up(Room& room, int num_ranks, std::size_t first, std::size_t count, int op, char* to) {
  // 16 bits are added in 32, as GPUs do.
  using Wide = std::conditional_t<sizeof(T) == 2, float, T>;
  for (std::size_t i = 0; i < count; ++i) {
    Wide sum{};
    for (int rank = 0; rank < num_ranks; ++rank) {
      T value;
      std::memcpy(&value, room.input[rank] + (first + i) * sizeof(T), sizeof(T));
      const Wide next = static_cast<Wide>(value);
      if (rank == 0)
        sum = next;
      else if (op == kProd)
        sum = static_cast<Wide>(sum * next);
      else if (op == kMax)
        sum = next > sum ? next : sum;
      else if (op == kMin)
        sum = next < sum ? next : sum;
      else
        sum = static_cast<Wide>(sum + next);
    }
    if (op == kAvg) sum = static_cast<Wide>(sum / static_cast<Wide>(num_ranks));
    const T narrow = static_cast<T>(sum);
    std::memcpy(to + i * sizeof(T), &narrow, sizeof(T));
  }
}

using AddUp = void (*)(Room&, int, std::size_t, std::size_t, int, char*);
constexpr AddUp kAddUp[] = {add_up<std::int8_t>,   add_up<std::uint8_t>, add_up<std::int32_t>,
                            add_up<std::uint32_t>, add_up<std::int64_t>, add_up<std::uint64_t>,
                            add_up<Half>,          add_up<float>,        add_up<double>,
                            add_up<Bfloat16>};

// "lag 1 20", for the first communicator of the process.
struct Fault {
  std::string what;
  int rank = -1;
  int number = 0;
};
Fault fault_for(int rank) {
  static std::atomic<bool> taken = false;
  const char* text = std::getenv("NCCL_STANDIN_FAULT");
  Fault fault;
  if (taken.exchange(true) || !text) return {};
  std::istringstream words(text);
  words >> fault.what >> fault.rank >> fault.number;
  return fault.rank == rank ? fault : Fault();
}

class Comm {
 public:
  Comm(Room& room, std::string name, int num_ranks, int rank, bool blocking)
      : room_(room),
        name_(std::move(name)),
        num_ranks_(num_ranks),
        rank_(rank),
        device_(current_device()),
        blocking_(blocking),
        fault_(fault_for(rank)) {
    attach(&room_, sizeof(Room));
    int nobody = 0;
    if (!own().num_ranks.compare_exchange_strong(nobody, num_ranks))
      punish("another process has this rank already");
    std::thread([this] { work(); }).detach();
    while (blocking_ && !complete()) nap();
  }

  Result async_error() {
    std::lock_guard lock(mutex_);
    check_alive("ncclCommGetAsyncError");
    if (!complete()) return kInProgress;
    if (failed_) return kRemoteError;
    if (polls_left_ == 0) return kSuccess;
    --polls_left_;
    return kInProgress;
  }

  // The memory stays: streams may still be at it, and calls on the dead are to be noticed.
  void abort() {
    std::lock_guard lock(mutex_);
    check_alive("ncclCommAbort");
    aborted_ = true;
    own().left_after = load(own().arrived);
    own().left = true;
    store(own().may_write, queued_);  // what waits on the GPU goes on, with whatever is there
    store(own().ready, queued_);
    queued_more_.notify_all();
    ::shm_unlink(name_.c_str());
  }

  Result call(Kind kind, int type, int op, int root, std::size_t count, const void* in, void* out,
              Stream stream) {
    if (type < 0 || type >= static_cast<int>(std::size(kTypes)) || op < 0 || op >= kNumOps ||
        root < 0 || root >= num_ranks_)
      return kInvalidArgument;
    const Call whole{kind, type, op, root, count, 0};
    check_buffers(whole, in, out);
    if (const std::string fault = fault_of_stream(stream); !fault.empty())
      punish(fmt::format("{}: {}", whole.describe(), fault));
    if (current_device() != device_)
      punish(fmt::format("{}: GPU {} is the current one, the communicator is on GPU {}",
                         whole.describe(), current_device(), device_));
    const std::size_t parts =
        kind == Kind::kReduceScatter ? static_cast<std::size_t>(num_ranks_) : 1;
    const std::size_t most = kSlotBytes / kTypes[type].size / parts;
    std::size_t offset = 0;
    do {
      Call piece = whole;
      piece.offset = offset;
      queue(piece, std::min(most, count - offset), static_cast<const char*>(in),
            static_cast<char*>(out), stream);
      offset += most;
    } while (offset < count);
    return blocking_ ? kSuccess : kInProgress;
  }

 private:
  Seat& own() { return room_.seats[rank_]; }
  static void nap() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }
  [[noreturn]] void punish(const std::string& why) const {
    fmt::print(stderr, "nccl stand-in: rank {} of {}: {}\n", rank_, num_ranks_, why);
    std::fflush(nullptr);
    std::_Exit(97);
  }
  void check_alive(const char* what) const {
    if (aborted_) punish(fmt::format("{} on a communicator that was aborted", what));
  }
  // All ranks sit, at the same table.
  bool complete() {
    if (met_) return true;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      const int theirs = room_.seats[rank].num_ranks;
      if (theirs == 0) return false;
      if (theirs != num_ranks_)
        punish(fmt::format("rank {} came with a world of {}", rank, theirs));
    }
    if (!met_.exchange(true)) ::shm_unlink(name_.c_str());  // nobody else is to come
    return true;
  }

  // NCCL allows the one overlap where a rank's part of the larger buffer is the smaller one.
  void check_buffers(const Call& call, const void* in, const void* out) const {
    const std::size_t bytes = call.count * kTypes[call.type].size;
    const std::size_t world = static_cast<std::size_t>(num_ranks_);
    const std::size_t in_bytes = call.kind == Kind::kReduceScatter ? bytes * world : bytes;
    const std::size_t out_bytes = call.kind == Kind::kAllGather ? bytes * world : bytes;
    if (bytes == 0) return;
    for (const auto& [what, buffer] : {std::pair{"input", in}, std::pair{"output", out}})
      if (const std::string fault = fault_of_buffer(buffer, device_); !fault.empty())
        punish(fmt::format("{}: its {} {}", call.describe(), what, fault));
    const auto* from = static_cast<const char*>(in);
    const auto* to = static_cast<const char*>(out);
    const std::size_t own_part = static_cast<std::size_t>(rank_) * bytes;
    const char* in_place = call.kind == Kind::kAllGather ? to + own_part : to;
    const char* place = call.kind == Kind::kReduceScatter ? from + own_part : from;
    if (in_place != place && from < to + out_bytes && to < from + in_bytes)
      punish(call.describe() + ": input and output overlap");
  }

  void queue(const Call& call, std::size_t count, const char* in, char* out, Stream stream) {
    Word number = 0;
    {
      std::unique_lock lock(mutex_);
      check_alive(name_of(call.kind));
      if (!complete()) punish(call.describe() + " before the communicator was ready");
      if (polls_left_ > 0 && call.offset == 0)
        punish(call.describe() + " while the call before it was still in progress");
      polls_left_ = blocking_ ? 0 : 1;
      number = queued_ + 1;
      // Numbers wrap, so they are compared by their distance.
      while (number - done_ >= kRing && !aborted_) {
        lock.unlock();
        nap();
        lock.lock();
      }
      queued_ = number;
      own().calls[number % kRing] = call;
      own().called.store(number, std::memory_order_release);
      if (aborted_) {  // from another thread, a moment ago
        store(own().may_write, queued_);
        store(own().ready, queued_);
      }
      queued_more_.notify_all();
    }
    const std::size_t size = kTypes[call.type].size, bytes = count * size;
    char* slot = room_.input[rank_];
    wait(&own().may_write, number, stream);
    if (call.kind == Kind::kReduceScatter) {
      for (int rank = 0; rank < num_ranks_; ++rank)
        copy(slot + static_cast<std::size_t>(rank) * bytes,
             in + (static_cast<std::size_t>(rank) * call.count + call.offset) * size, bytes,
             stream);
    } else if (call.kind != Kind::kBroadcast || rank_ == call.root) {
      copy(slot, in + call.offset * size, bytes, stream);
    }
    write(&own().arrived, number, stream);
    wait(&own().ready, number, stream);
    char* to = out + call.offset * size;
    if (call.kind == Kind::kAllGather) {
      for (int rank = 0; rank < num_ranks_; ++rank)
        copy(to + static_cast<std::size_t>(rank) * call.count * size, room_.input[rank], bytes,
             stream);
    } else if (call.kind == Kind::kBroadcast) {
      copy(to, room_.input[call.root], bytes, stream);
    } else {
      copy(to, room_.result[rank_], bytes, stream);
    }
    write(&own().finished, number, stream);
  }

  template <class Condition>
  bool until(Condition holds) {
    while (!aborted_) {
      if (holds()) return true;
      nap();
    }
    return false;
  }
  template <class Condition>
  bool everyone(Condition holds) {
    return until([&] {
      for (int rank = 0; rank < num_ranks_; ++rank)
        if (!holds(room_.seats[rank])) return false;
      return true;
    });
  }

  void work() {
    for (Word number = 1;; ++number) {
      {
        std::unique_lock lock(mutex_);
        queued_more_.wait(lock, [&] { return aborted_ || reached(queued_, number); });
      }
      if (!everyone([&](Seat& seat) { return reached(load(seat.finished), number - 1); })) return;
      done_ = number - 1;
      misbehave(number);
      if (!advance(own().may_write, number)) return;
      if (!everyone([&](Seat& seat) { return reached(seat.called.load(), number); })) return;
      const Call& call = own().calls[number % kRing];
      compare(number, call);
      const auto came = [&](Seat& seat) {
        return reached(load(seat.arrived), number) &&
               (!seat.left || reached(seat.left_after, number));
      };
      if (!everyone(came)) return;
      compute(call);
      if (!advance(own().ready, number)) return;
    }
  }

  // Not behind abort(), which lets go of all that is queued.
  bool advance(Word& word, Word number) {
    std::lock_guard lock(mutex_);
    if (!aborted_) store(word, number);
    return !aborted_;
  }

  void compare(Word number, const Call& call) const {
    for (int rank = 0; rank < num_ranks_; ++rank)
      if (const Call& other = room_.seats[rank].calls[number % kRing]; other != call)
        punish(
            fmt::format("operation {} is {} here and {} on rank {}: NCCL would hang or mix them up",
                        number, call.describe(), other.describe(), rank));
  }

  void compute(const Call& call) {
    const bool scatters = call.kind == Kind::kReduceScatter;
    if (call.kind != Kind::kAllReduce && !scatters) return;
    const std::size_t parts = scatters ? static_cast<std::size_t>(num_ranks_) : 1;
    const std::size_t most = kSlotBytes / kTypes[call.type].size / parts;
    const std::size_t count = std::min<std::size_t>(most, call.count - call.offset);
    const std::size_t first = scatters ? static_cast<std::size_t>(rank_) * count : 0;
    kAddUp[call.type](room_, num_ranks_, first, count, call.op, room_.result[rank_]);
  }

  void misbehave(Word number) {
    if (fault_.what == "lag") std::this_thread::sleep_for(std::chrono::milliseconds(fault_.number));
    if (fault_.what != "hang" && fault_.what != "error") return;
    if (number < static_cast<Word>(fault_.number)) return;
    fmt::print(stderr, "nccl stand-in: rank {}: {} from operation {} on, as asked for\n", rank_,
               fault_.what, number);
    failed_ = fault_.what == "error";
    until([] { return false; });
  }

  // Constant after construction.
  Room& room_;
  std::string name_;
  int num_ranks_;
  int rank_;
  int device_;
  bool blocking_;
  Fault fault_;

  std::atomic<bool> aborted_ = false;
  std::atomic<bool> failed_ = false;
  std::atomic<bool> met_ = false;  // all ranks
  std::atomic<Word> done_ = 0;     // by all ranks
  // Guarded by mutex_.
  std::mutex mutex_;
  std::condition_variable queued_more_;
  Word queued_ = 0;
  int polls_left_ = 0;  // the last call is in progress for so many questions
};

struct UniqueId {
  char bytes[128];
};
struct Config {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};

Room* open_room(const std::string& name, int flags) {
  const int file = ::shm_open(name.c_str(), flags | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0) return nullptr;
  void* memory = MAP_FAILED;
  if (!(flags & O_CREAT) || ::ftruncate(file, sizeof(Room)) == 0)
    memory = ::mmap(nullptr, sizeof(Room), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  return memory == MAP_FAILED ? nullptr : static_cast<Room*>(memory);
}

}  // namespace
}  // namespace nccl_standin

using nccl_standin::Comm;
using nccl_standin::Config;
using nccl_standin::Kind;
using nccl_standin::Result;
using nccl_standin::Stream;
using nccl_standin::UniqueId;

extern "C" {

Result ncclGetUniqueId(UniqueId* id) {
  static std::atomic<int> made = 0;
  const std::string name = fmt::format("/tutti-nccl-standin-{}-{}", ::getpid(), made++);
  std::memset(id->bytes, 0, sizeof(id->bytes));
  name.copy(id->bytes, sizeof(id->bytes) - 1);
  // Fresh pages are zeros, which is how an empty room looks.
  ::shm_unlink(name.c_str());  // of a dead process with the same number
  nccl_standin::Room* room = nccl_standin::open_room(name, O_CREAT | O_EXCL);
  if (!room) return nccl_standin::kInvalidArgument;
  ::munmap(room, sizeof(*room));
  return nccl_standin::kSuccess;
}

Result ncclCommInitRankConfig(Comm** comm, int num_ranks, UniqueId id, int rank, Config* config) {
  if (num_ranks < 1 || num_ranks > nccl_standin::kMaxRanks || rank < 0 || rank >= num_ranks ||
      (config && (config->magic != 0xcafebeef || config->size < sizeof(Config))))
    return nccl_standin::kInvalidArgument;
  nccl_standin::Room* room = nccl_standin::open_room(id.bytes, 0);
  if (!room) return nccl_standin::kInvalidArgument;
  const bool blocking = !config || config->blocking != 0;
  *comm = new Comm(*room, id.bytes, num_ranks, rank, blocking);  // stays, see abort()
  return blocking ? nccl_standin::kSuccess : nccl_standin::kInProgress;
}

Result ncclCommGetAsyncError(Comm* comm, Result* state) {
  *state = comm->async_error();
  return nccl_standin::kSuccess;
}

Result ncclCommAbort(Comm* comm) {
  comm->abort();
  return nccl_standin::kSuccess;
}

const char* ncclGetErrorString(Result result) {
  switch (result) {
    case nccl_standin::kSuccess:
      return "no error";
    case nccl_standin::kInvalidArgument:
      return "invalid argument";
    case nccl_standin::kRemoteError:
      return "remote process exited or there was a network error";
    case nccl_standin::kInProgress:
      return "operation in progress";
  }
  return "unknown";
}

Result ncclAllReduce(const void* in, void* out, std::size_t count, int type, int op, Comm* comm,
                     Stream stream) {
  return comm->call(Kind::kAllReduce, type, op, 0, count, in, out, stream);
}

Result ncclBroadcast(const void* in, void* out, std::size_t count, int type, int root, Comm* comm,
                     Stream stream) {
  return comm->call(Kind::kBroadcast, type, 0, root, count, in, out, stream);
}

Result ncclAllGather(const void* in, void* out, std::size_t count, int type, Comm* comm,
                     Stream stream) {
  return comm->call(Kind::kAllGather, type, 0, 0, count, in, out, stream);
}

Result ncclReduceScatter(const void* in, void* out, std::size_t count, int type, int op, Comm* comm,
                         Stream stream) {
  return comm->call(Kind::kReduceScatter, type, op, 0, count, in, out, stream);
}
}
