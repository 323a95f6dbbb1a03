// Metrics as CSV and as JSON lines.
#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/core/file.h"
#include "tutti/core/log.h"
#include "tutti/core/text.h"
#include "tutti/trainer/loggers/logger.h"

namespace tutti::trainer {
namespace {

UniqueFd open_append(const std::filesystem::path& path) {
  make_folders(path.parent_path());
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd) throw_errno("cannot create " + path.string(), errno);
  return fd;
}

class JsonlLogger final : public Logger {
 public:
  explicit JsonlLogger(std::filesystem::path path)
      : path_(std::move(path)), fd_(open_append(path_)) {}
  void log(const LogPoint& at, const Metrics& metrics) override {
    Json line = {{"step", at.step}, {"epoch", at.epoch}};
    for (const auto& [name, value] : metrics) line[name] = value;
    write_all(fd_.get(), to_json_line(line) + "\n", path_);
  }
  void flush() override { fsync_file(fd_.get(), path_); }

  void rewind(std::int64_t step, bool at_the_end) override {
    std::string kept, all = read_file(path_);
    for (const std::string& line : split(all, '\n')) {
      const Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!row.is_object()) continue;  // the last line of a killed run
      const std::int64_t at = row.value("step", std::int64_t{0});
      bool ends = false;
      for (const auto& [name, value] : row.items()) ends = ends || is_of_the_end(name);
      if (at < step || (at == step && !(at_the_end && ends))) kept += line + "\n";
    }
    if (kept == all) return;
    write_file_atomic(path_, kept);
    fd_ = open_append(path_);
  }

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
};

class CsvLogger final : public Logger {
 public:
  CsvLogger(std::filesystem::path path, int every) : path_(std::move(path)), every_(every) {
    make_folders(path_.parent_path());
    if (std::filesystem::exists(path_)) read_existing();
  }
  ~CsvLogger() override {
    try {
      write();
    } catch (const std::exception& error) {  // nobody above can be told
      log::warning("{}", error.what());
    }
  }

  void log(const LogPoint& at, const Metrics& metrics) override {
    Row row{{"step", std::to_string(at.step)}, {"epoch", std::to_string(at.epoch)}};
    for (const auto& [name, value] : metrics) row[name] = fmt::format("{}", value);
    for (const auto& [name, value] : row)
      if (std::find(columns_.begin(), columns_.end(), name) == columns_.end()) {
        columns_.insert(std::upper_bound(columns_.begin(), columns_.end(), name), name);
        stale_ = true;  // the header has to change
      }
    rows_.push_back(std::move(row));
    if (rows_.size() - written_ >= static_cast<std::size_t>(every_)) write();
  }
  void flush() override {
    write();
    if (fd_) fsync_file(fd_.get(), path_);
  }
  void rewind(std::int64_t step, bool at_the_end) override {
    const auto dropped = std::erase_if(rows_, [&](const Row& row) {
      const std::int64_t at = std::stoll(row.at("step"));
      const bool ends = std::any_of(row.begin(), row.end(),
                                    [](const auto& field) { return is_of_the_end(field.first); });
      return at > step || (at == step && at_the_end && ends);
    });
    if (dropped == 0) return;
    stale_ = true;
    write();
  }

 private:
  using Row = std::map<std::string, std::string>;

  std::string text_of(const Row& row) const {
    std::vector<std::string> fields;
    for (const std::string& column : columns_) {
      const auto found = row.find(column);
      fields.push_back(found == row.end() ? "" : found->second);
    }
    return join(fields, ",") + "\n";
  }
  void write() {
    if (!stale_ && written_ == rows_.size()) return;
    const bool anew = stale_ || !fd_;
    std::string text = anew ? join(columns_, ",") + "\n" : "";
    for (std::size_t i = anew ? 0 : written_; i < rows_.size(); ++i) text += text_of(rows_[i]);
    if (anew) {
      write_file_atomic(path_, text);
      fd_ = open_append(path_);
    } else {
      write_all(fd_.get(), text, path_);
    }
    written_ = rows_.size();
    stale_ = false;
  }
  // A resumed run goes on in the same file.
  void read_existing() {
    const auto lines = split(read_file(path_), '\n');
    const auto header = split(lines[0], ',');
    const auto step = std::find(header.begin(), header.end(), "step") - header.begin();
    if (static_cast<std::size_t>(step) == header.size()) return;
    columns_ = header;
    std::sort(columns_.begin(), columns_.end());
    stale_ = columns_ != header;  // of another version
    for (std::size_t i = 1; i < lines.size(); ++i) {
      const auto fields = split(lines[i], ',');
      if (fields.size() != header.size()) continue;  // the last line of a killed run
      const std::string& number = fields[static_cast<std::size_t>(step)];
      if (number.empty() || number.find_first_not_of("0123456789") != std::string::npos) continue;
      Row row;
      for (std::size_t c = 0; c < header.size(); ++c)
        if (!fields[c].empty()) row[header[c]] = fields[c];
      rows_.push_back(std::move(row));
    }
    written_ = rows_.size();
  }

  std::filesystem::path path_;
  int every_;
  std::vector<std::string> columns_ = {"epoch", "step"};
  std::vector<Row> rows_;
  std::size_t written_ = 0;
  bool stale_ = false;  // the file has to be written anew
  UniqueFd fd_;
};

}  // namespace

namespace {
class PrefixLogger final : public Logger {
 public:
  PrefixLogger(std::string prefix, std::unique_ptr<Logger> inner)
      : prefix_(std::move(prefix) + "-"), inner_(std::move(inner)) {}
  void log(const LogPoint& at, const Metrics& metrics) override {
    Metrics named;
    for (const auto& [name, value] : metrics) named[prefix_ + name] = value;
    inner_->log(at, named);
  }
  void flush() override { inner_->flush(); }
  void rewind(std::int64_t step, bool at_the_end) override { inner_->rewind(step, at_the_end); }

 private:
  std::string prefix_;
  std::unique_ptr<Logger> inner_;
};
}  // namespace

bool is_of_the_end(const std::string& metric) {
  return metric.find("valid/") != std::string::npos || metric.ends_with("_epoch");
}

std::unique_ptr<Logger> with_prefix(const std::string& prefix, std::unique_ptr<Logger> logger) {
  if (prefix.empty()) return logger;
  return std::make_unique<PrefixLogger>(prefix, std::move(logger));
}

std::unique_ptr<Logger> make_csv_logger(const std::filesystem::path& folder, int every) {
  return std::make_unique<CsvLogger>(folder / "metrics.csv", every);
}
std::unique_ptr<Logger> make_jsonl_logger(const std::filesystem::path& path) {
  return std::make_unique<JsonlLogger>(path);
}

}  // namespace tutti::trainer
