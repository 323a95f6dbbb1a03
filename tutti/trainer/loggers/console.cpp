#include "tutti/trainer/loggers/console.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "tutti/core/progress.h"
#include "tutti/core/text.h"
#include "tutti/core/units.h"

namespace tutti::trainer {
namespace {

constexpr std::size_t kMostParts = 10;

bool is_loss(const std::string& name) { return name.rfind("loss", 0) == 0; }

// The loss, then the rest by name, without losses that repeat one before.
std::vector<std::pair<std::string, double>> ordered(const Numbers& numbers) {
  std::vector<std::pair<std::string, double>> out;
  const auto loss = numbers.find("loss");
  if (loss != numbers.end()) out.push_back(*loss);
  for (const auto& [name, value] : numbers) {
    if (name == "loss") continue;
    const bool repeats =
        is_loss(name) && std::any_of(out.begin(), out.end(), [&](const auto& before) {
          return is_loss(before.first) && before.second == value;
        });
    if (!repeats) out.emplace_back(name, value);
  }
  return out;
}

std::string of_total(std::int64_t n, std::optional<std::int64_t> total) {
  return total ? fmt::format("{}/{}", n, *total) : std::to_string(n);
}

std::string per_second(double n, const char* what) {
  return n >= 100 ? fmt::format("{:.0f} {}/s", n, what) : fmt::format("{:.3g} {}/s", n, what);
}

std::string speed(const Progress& p) {
  if (p.audio_per_second > 0) return per_second(p.audio_per_second, "s audio");
  return p.items_per_second > 0 ? per_second(p.items_per_second, "items") : "";
}

std::string eta(const Progress& p) {
  return p.seconds_left.value_or(0) > 0 ? "eta " + format_duration(*p.seconds_left) : "";
}

// Those that are not empty.
std::string join_some(const std::vector<std::string>& parts) {
  std::vector<std::string> some;
  for (const std::string& part : parts)
    if (!part.empty()) some.push_back(part);
  return join(some, ", ");
}

std::string count(std::int64_t n) {
  const auto x = static_cast<double>(n);
  if (n >= 1'000'000'000) return fmt::format("{:.2f} G", x / 1e9);
  if (n >= 1'000'000) return fmt::format("{:.2f} M", x / 1e6);
  if (n >= 10'000) return fmt::format("{:.1f} k", x / 1e3);
  return std::to_string(n);
}

}  // namespace

std::string describe_numbers(const Numbers& numbers, std::size_t width) {
  std::string text;
  for (const auto& [name, value] : ordered(numbers)) {
    const std::string next = fmt::format("{}{}={:.4g}", text.empty() ? "" : ", ", name, value);
    if (!text.empty() && text.size() + next.size() > width) break;
    text += next;
  }
  return text;
}

std::string log_line(const Progress& p) {
  const std::string begin =
      fmt::format("epoch {}, step {}: ", of_total(p.epoch, p.epochs), of_total(p.step, p.steps));
  std::string wait;
  if (p.wait_share >= 0.005) {
    wait = fmt::format("wait {:.0f} %", 100 * p.wait_share);
    if (p.wait_rank && p.wait_share > 0.05) wait += fmt::format(" (rank {})", *p.wait_rank);
  }
  const std::string end =
      "; " + join_some({fmt::format("lr={:.3g}", p.lr), speed(p), wait, eta(p)});
  const std::size_t taken = begin.size() + end.size();
  return begin + describe_numbers(p.train, kLineWidth > taken ? kLineWidth - taken : 0) + end;
}

std::string progress_line(const Progress& p, std::size_t columns) {
  std::string bar;
  if (p.steps && *p.steps > 0)
    bar = progress_bar(static_cast<double>(p.step) / static_cast<double>(*p.steps),
                       columns >= kLineWidth ? 16 : 8);
  const auto loss = p.train.find("loss");
  enum { kEpoch, kStep, kLoss, kValidation, kRate, kSpeed, kEta, kMemory, kParts };
  std::vector<std::string> parts(kParts);
  parts[kEpoch] = fmt::format("epoch {}", of_total(p.epoch, p.epochs));
  parts[kStep] = fmt::format("step {}", of_total(p.step, p.steps));
  if (loss != p.train.end()) parts[kLoss] = fmt::format("loss {:.4g}", loss->second);
  if (p.validation) parts[kValidation] = fmt::format("{} {:.4g}", p.validation_name, *p.validation);
  parts[kRate] = fmt::format("lr {:.3g}", p.lr);
  parts[kSpeed] = speed(p);
  parts[kEta] = eta(p);
  if (p.device_bytes > 0) parts[kMemory] = "GPU " + format_bytes(p.device_bytes);
  for (const int least : {kMemory, kRate, kSpeed})  // what a narrow one can miss
    if (bar.size() + join_some(parts).size() >= columns)
      parts[static_cast<std::size_t>(least)].clear();
  if (bar.size() + join_some(parts).size() < columns) return bar + join_some(parts);
  for (const int least : {kValidation, kEta})
    if (join_some(parts).size() > columns) parts[static_cast<std::size_t>(least)].clear();
  return join_some(parts).substr(0, columns);
}

std::string log_line(const EpochRow& row) {
  const std::string begin = fmt::format("epoch {} done (step {}): ", row.epoch, row.step);
  const std::string end = (row.best ? " (best so far); " : "; ") + format_duration(row.seconds);
  const std::size_t room = kLineWidth - begin.size() - end.size();
  if (row.valid.empty()) return begin + describe_numbers(row.train, room) + end;
  const std::string train = describe_numbers(row.train, room / 2);
  const std::string valid = describe_numbers(row.valid, room - train.size() - 9);
  return begin + train + (train.empty() ? "valid: " : "; valid: ") + valid + end;
}

std::vector<std::string> EpochTable::add(const EpochRow& row, std::size_t columns) {
  constexpr std::size_t kNumber = 11, kEpoch = 5 + 2, kStep = 9, kRate = 10, kTime = 9;
  std::vector<std::string> lines;
  if (!started_) {
    started_ = true;
    // On a narrow terminal the two losses get the room, rather than rate and step; one of them
    // rather than the time.
    const auto room_beside = [&](std::size_t fixed) {
      const std::size_t width = std::min<std::size_t>(columns, kLineWidth);
      return width > fixed ? (width - fixed) / (kNumber + 1) : 0;
    };
    has_rate_ = room_beside(kEpoch + kStep + kRate + kTime) >= 2;
    has_step_ = room_beside(kEpoch + kStep + kTime) >= 2;
    has_time_ = room_beside(kEpoch + kTime) >= 1;
    const std::size_t room = room_beside(kEpoch + (has_step_ ? kStep : 0) +
                                         (has_rate_ ? kRate : 0) + (has_time_ ? kTime : 0));
    const auto take = [&](bool of_validation, const Numbers& numbers, std::size_t most) {
      for (const auto& [name, value] : ordered(numbers)) {
        if (most == 0 || metrics_.size() >= room) return;
        metrics_.emplace_back(of_validation, name);
        --most;
      }
    };
    take(false, row.train, 1);
    take(true, row.valid, room);
    if (row.valid.empty()) {
      metrics_.clear();
      take(false, row.train, room);
    }
    std::string header = fmt::format("{:>5}", "epoch");
    if (has_step_) header += fmt::format("{:>9}", "step");
    for (const auto& [of_validation, name] : metrics_)
      header += fmt::format(" {:>{}}", (of_validation ? "val " + name : name).substr(0, kNumber),
                            kNumber);
    if (has_rate_) header += fmt::format("{:>10}", "lr");
    if (has_time_) header += fmt::format("{:>9}", "time");
    lines.push_back(header);
  }
  std::string line = fmt::format("{:>5}", row.epoch);
  if (has_step_) line += fmt::format("{:>9}", row.step);
  for (const auto& [of_validation, name] : metrics_) {
    const Numbers& numbers = of_validation ? row.valid : row.train;
    const auto found = numbers.find(name);
    line += fmt::format(
        " {:>{}}", found == numbers.end() ? "-" : fmt::format("{:.4g}", found->second), kNumber);
  }
  if (has_rate_) line += fmt::format("{:>10.3g}", row.lr);
  if (has_time_) line += fmt::format("{:>9}", format_duration(row.seconds));
  lines.push_back(line + (row.best ? " *" : ""));
  return lines;
}

std::vector<ModelPart> model_parts(const std::vector<std::pair<std::string, std::int64_t>>& sizes) {
  std::vector<ModelPart> parts;
  // "model.encoder...", "model.decoder...": the first part that differs tells them apart.
  for (std::size_t depth = 1; depth < 8; ++depth) {
    parts.clear();
    for (const auto& [name, size] : sizes) {
      const auto words = split(name, '.');
      const std::vector<std::string> first(
          words.begin(),
          words.begin() + static_cast<std::ptrdiff_t>(std::min(depth, words.size())));
      const std::string part = join(first, ".");
      const auto found = std::find_if(parts.begin(), parts.end(),
                                      [&](const ModelPart& p) { return p.name == part; });
      if (found == parts.end())
        parts.push_back({part, size});
      else
        found->parameters += size;
    }
    if (parts.size() != 1) break;
  }
  return parts;
}

std::vector<std::string> model_summary(const ModelSize& model) {
  std::vector<ModelPart> parts = model.parts;
  ModelPart rest{"(others)", 0};
  while (parts.size() > kMostParts) {  // the largest stay, in the model's order
    const auto smallest = std::min_element(
        parts.begin(), parts.end(),
        [](const ModelPart& a, const ModelPart& b) { return a.parameters < b.parameters; });
    rest.parameters += smallest->parameters;
    parts.erase(smallest);
  }
  if (rest.parameters > 0) parts.push_back(rest);
  std::size_t width = 5;
  for (const ModelPart& part : parts) width = std::max(width, part.name.size());
  width = std::min<std::size_t>(width, 40);
  std::vector<std::string> lines;
  for (const ModelPart& part : parts)
    lines.push_back(fmt::format(
        "  {:{}}  {:>9}  {:>3.0f} %", part.name.substr(0, width), width, count(part.parameters),
        100.0 * static_cast<double>(part.parameters) /
            static_cast<double>(std::max<std::int64_t>(1, model.parameters))));
  if (parts.size() == 1) lines.clear();
  lines.push_back(fmt::format(
      "model: {} parameters{}, {} in {}", count(model.parameters),
      model.trained == model.parameters ? "" : fmt::format(" ({} trained)", count(model.trained)),
      format_bytes(model.bytes), model.type));
  return lines;
}

}  // namespace tutti::trainer
