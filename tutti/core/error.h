// Every failure Tutti reports: one exception tree, one documented exit code per type.
//
// A message says where, which key, what it got, what it expected and how to fix it. Rooms throw
// the type that names whose fault it is; mains turn it into text and an exit code with
// `report_and_exit_code`. Nothing else in the tree calls exit().
//
//   throw DataError("data/train/wav.scp:12: utt_7: file not found: a.wav",
//                   "check the path or use on_bad: skip");
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace tutti {

// The exit codes of every Tutti program (docs/commands.md lists them for users).
enum class ExitCode : int {
  kDone = 0,
  kConfig = 2,
  kData = 3,
  kIo = 4,
  kCommunication = 5,
  kScheduler = 6,
  kItemsFailed = 7,
  kInternal = 70,
  kStoppedResumable = 85,  // a signal (preemption, walltime) stopped the work; rerun to go on
  kInterrupted = 130,      // the user pressed Ctrl-C; rerun to go on
};

class Error : public std::runtime_error {
 public:
  // `fix` is one sentence that tells the user what to do; it may be empty.
  explicit Error(const std::string& message, std::string fix = {})
      : std::runtime_error(fix.empty() ? message : message + "\n  fix: " + fix),
        fix_(std::move(fix)) {}
  virtual ExitCode exit_code() const noexcept = 0;
  virtual std::string_view kind() const noexcept = 0;
  const std::string& fix() const noexcept { return fix_; }

 private:
  std::string fix_;
};

#define TUTTI_DEFINE_ERROR(Name, Code, Kind)                         \
  class Name : public Error {                                        \
   public:                                                           \
    using Error::Error;                                              \
    ExitCode exit_code() const noexcept override { return Code; }    \
    std::string_view kind() const noexcept override { return Kind; } \
  }

TUTTI_DEFINE_ERROR(ConfigError, ExitCode::kConfig, "config error");
TUTTI_DEFINE_ERROR(DataError, ExitCode::kData, "data error");
TUTTI_DEFINE_ERROR(IoError, ExitCode::kIo, "io error");
TUTTI_DEFINE_ERROR(CommError, ExitCode::kCommunication, "communication error");
TUTTI_DEFINE_ERROR(SchedulerError, ExitCode::kScheduler, "scheduler error");
TUTTI_DEFINE_ERROR(TaskError, ExitCode::kItemsFailed, "task error");
TUTTI_DEFINE_ERROR(InternalError, ExitCode::kInternal, "internal error");
#undef TUTTI_DEFINE_ERROR

// Work that stopped on request and can be resumed: by Ctrl-C, or by a signal of the cluster.
class Cancelled : public Error {
 public:
  enum class By { kUser, kSignal };
  Cancelled(By by, const std::string& message,
            std::string fix = "run the same command again to continue")
      : Error(message, std::move(fix)), by_(by) {}
  ExitCode exit_code() const noexcept override {
    return by_ == By::kUser ? ExitCode::kInterrupted : ExitCode::kStoppedResumable;
  }
  std::string_view kind() const noexcept override { return "stopped"; }

 private:
  By by_;
};

// The reason is on the terminal already (a rank printed it); only its exit code is left to pass on.
class AlreadyReported : public Error {
 public:
  explicit AlreadyReported(int exit_code) : Error("failed; see above"), code_(exit_code) {}
  ExitCode exit_code() const noexcept override { return static_cast<ExitCode>(code_); }
  std::string_view kind() const noexcept override { return "failed"; }

 private:
  int code_;
};

// IoError with the system's words: "cannot open FILE: No such file or directory".
[[noreturn]] void throw_errno(const std::string& what, int errno_value, std::string fix = {});

// Prints the exception being handled to stderr and returns its exit code. Call inside a catch
// block only. Unknown exceptions count as a bug in Tutti (70).
int report_and_exit_code() noexcept;

}  // namespace tutti
