// MLflow's file store: FOLDER/EXPERIMENT_ID/{meta.yaml, RUN_ID/{meta.yaml, metrics/NAME, tags/NAME}}.
// A metric's file has a line "milliseconds value step" per value.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/random.h"
#include "tutti/core/text.h"
#include "tutti/trainer/loggers/logger.h"

namespace tutti::trainer {
namespace {

namespace fs = std::filesystem;

constexpr int kRunning = 1, kFinished = 3;  // MLflow's numbers

std::int64_t now_ms() { return static_cast<std::int64_t>(Clock::system().unix_seconds() * 1000); }

std::string yaml_text(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("''") : std::string(1, c);
  return out + "'";
}

// "name: 'x'" of a meta.yaml, without its quotes.
std::string value_of(const std::string& yaml, const std::string& key) {
  for (const std::string& line : split(yaml, '\n')) {
    if (line.rfind(key + ": ", 0) != 0) continue;
    std::string text(trim(line.substr(key.size() + 2)));
    if (text.size() >= 2 && text.front() == '\'') text = text.substr(1, text.size() - 2);
    return text;
  }
  return "";
}

class MlflowLogger final : public Logger {
 public:
  explicit MlflowLogger(const MlflowOptions& options) : store_(fs::absolute(options.folder)) {
    open_experiment(options.experiment);
    open_run(options);
    for (const auto& [name, value] : options.tags) tag(name, value);
  }
  ~MlflowLogger() override {
    try {
      write_meta(kFinished);
    } catch (const std::exception&) {  // the run stays marked as running; its numbers are there
    }
  }

  void log(const LogPoint& at, const Metrics& metrics) override {
    const std::int64_t time = now_ms();
    append("epoch", time, static_cast<double>(at.epoch), at.step);
    for (const auto& [name, value] : metrics) append(name, time, value, at.step);
  }
  void flush() override {
    for (const auto& [name, fd] : files_) fsync_file(fd.get(), run_ / "metrics" / name);
  }
  void rewind(std::int64_t step, bool at_the_end) override {
    files_.clear();
    for (const auto& entry : fs::recursive_directory_iterator(run_ / "metrics")) {
      if (!entry.is_regular_file()) continue;
      const std::string name = entry.path().lexically_relative(run_ / "metrics").string();
      const std::string all = read_file(entry.path());
      std::string kept;
      for (const std::string& line : split(all, '\n')) {
        const auto fields = split(line, ' ');
        if (fields.size() != 3) continue;  // the last line of a killed run
        const std::int64_t at = std::atoll(fields[2].c_str());
        if (at < step || (at == step && !(at_the_end && is_of_the_end(name)))) kept += line + "\n";
      }
      if (kept != all) write_file_atomic(entry.path(), kept);
    }
  }

 private:
  void open_experiment(const std::string& name) {
    make_folders(store_);
    for (const auto& entry : fs::directory_iterator(store_)) {
      const fs::path meta = entry.path() / "meta.yaml";
      if (fs::exists(meta) && value_of(read_file(meta), "name") == name) {
        experiment_ = entry.path();
        return;
      }
    }
    const std::string id = std::to_string(hash64(name) % 1'000'000'000'000'000'000ull);
    experiment_ = store_ / id;
    make_folders(experiment_);
    write_file_atomic(experiment_ / "meta.yaml",
                      fmt::format("artifact_location: {}\ncreation_time: {}\nexperiment_id: "
                                  "'{}'\nlast_update_time: {}\nlifecycle_stage: active\nname: {}\n",
                                  yaml_text("file://" + experiment_.string()), now_ms(), id,
                                  now_ms(), yaml_text(name)));
  }

  void open_run(const MlflowOptions& options) {
    name_ = options.run;
    if (fs::exists(options.note)) {
      id_ = trim(read_file(options.note));
      run_ = experiment_ / id_;
      if (fs::exists(run_ / "meta.yaml")) {
        start_ = std::atoll(value_of(read_file(run_ / "meta.yaml"), "start_time").c_str());
        return write_meta(kRunning);
      }
    }
    start_ = now_ms();
    id_ = fmt::format(
        "{:016x}{:016x}", hash64(name_ + experiment_.string()),
        hash_combine({static_cast<std::uint64_t>(start_), static_cast<std::uint64_t>(::getpid())}));
    run_ = experiment_ / id_;
    for (const char* folder : {"metrics", "params", "tags", "artifacts"})
      make_folders(run_ / folder);
    tag("mlflow.runName", name_);
    write_meta(kRunning);
    write_file_atomic(options.note, id_ + "\n");
  }

  void write_meta(int status) {
    const char* user = std::getenv("USER");
    write_file_atomic(
        run_ / "meta.yaml",
        fmt::format("artifact_uri: {}\nend_time: {}\nentry_point_name: ''\nexperiment_id: "
                    "'{}'\nlifecycle_stage: active\nrun_id: {}\nrun_name: {}\nrun_uuid: "
                    "{}\nsource_name: ''\nsource_type: 4\nsource_version: ''\nstart_time: "
                    "{}\nstatus: {}\ntags: []\nuser_id: {}\n",
                    yaml_text("file://" + (run_ / "artifacts").string()),
                    status == kRunning ? "null" : std::to_string(now_ms()),
                    experiment_.filename().string(), id_, yaml_text(name_), id_, start_, status,
                    yaml_text(user ? user : "")));
  }

  void tag(const std::string& name, const std::string& value) {
    write_file_atomic(run_ / "tags" / name, value);
  }

  void append(const std::string& name, std::int64_t time, double value, std::int64_t step) {
    UniqueFd& fd = files_[name];
    const fs::path path = run_ / "metrics" / name;
    if (!fd) {
      make_folders(path.parent_path());
      fd.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
      if (!fd) throw_errno("cannot create " + path.string(), errno);
    }
    write_all(fd.get(), fmt::format("{} {} {}\n", time, value, step), path);
  }

  fs::path store_, experiment_, run_;
  std::string name_, id_;
  std::int64_t start_ = 0;
  std::map<std::string, UniqueFd> files_;  // by metric
};

}  // namespace

std::unique_ptr<Logger> make_mlflow_logger(const MlflowOptions& options) {
  return std::make_unique<MlflowLogger>(options);
}

}  // namespace tutti::trainer
