#include "tutti/systems/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "tutti/core/clock.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/text.h"
#include "tutti/core/units.h"
#include "tutti/speech/metrics/report.h"
#include "tutti/systems/report/svg_plot.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using speech::escape_html;

using Curve = std::map<double, double>;

// metric -> its points over optimizer steps. A resumed run writes a step again; the last one
// counts.
std::map<std::string, Curve> read_curves(const fs::path& file) {
  std::map<std::string, Curve> curves;
  if (!fs::exists(file)) return curves;
  for (const auto& line : split(read_file(file), '\n')) {
    if (trim(line).empty()) continue;
    const Json record = Json::parse(line, nullptr, false);
    if (!record.is_object() || !record.contains("step")) continue;  // a line cut short by a crash
    for (const auto& [name, value] : record.items())
      if (value.is_number()) curves[name][record["step"].get<double>()] = value.get<double>();
  }
  return curves;
}

struct Chart {
  std::string title;
  int place = 0;  // charts with a lower one come first; equal ones by title
  std::vector<Series> series;
};

// What a metric's name says to people, and how much they care.
Chart chart_of(const std::string& name) {
  const std::string base = name.substr(name.find('/') + 1);
  if (base.rfind("optim", 0) == 0 && base.find("_lr") != std::string::npos)
    return {"learning rate", 4, {}};
  if (name.rfind("time/", 0) == 0)
    return base == "data_wait_share" ? Chart{"share of time spent waiting for data", 7, {}}
                                     : Chart{"seconds per step", 8, {}};
  if (base == "audio_seconds_per_second") return {"seconds of audio per second", 5, {}};
  if (base == "items_per_second") return {"utterances per second", 6, {}};
  if (base == "grad_norm") return {"norm of the gradient", 4, {}};
  return {base, base == "loss" ? 1 : base.rfind("loss", 0) == 0 ? 3 : 2, {}};
}

std::string series_name(const std::string& name) {
  const auto slash = name.find('/');
  if (slash == std::string::npos)  // optim0_lr0 is most people's only one
    return name.rfind("optim", 0) == 0 && name != "optim0_lr0" ? name.substr(5) : "";
  const std::string room = name.substr(0, slash);
  if (room == "time") return name.substr(slash + 1) == "step" ? "all" : name.substr(slash + 1);
  return room == "train" || room == "valid" ? room : "";
}

// The mean of an epoch beside the values it is the mean of, and a part of a loss that is all of it.
bool repeats_another(const std::string& name, const std::map<std::string, Curve>& curves) {
  constexpr std::string_view kEpoch = "_epoch";
  if (name.ends_with(kEpoch) && curves.count(name.substr(0, name.size() - kEpoch.size())))
    return true;
  const Curve& own = curves.at(name);
  return std::any_of(curves.begin(), curves.end(), [&](const auto& other) {
    return other.second == own && (other.first.size() < name.size() ||
                                   (other.first.size() == name.size() && other.first < name));
  });
}

// Values of several sizes would flatten each other on a linear axis.
bool needs_log_axis(const std::vector<Series>& series) {
  double low = std::numeric_limits<double>::infinity();
  double high = 0;
  for (const Series& line : series)
    for (const double y : line.y) {
      if (!std::isfinite(y)) continue;
      low = std::min(low, y);
      high = std::max(high, y);
    }
  return low > 0 && high > 20 * low;
}

// Losses first, then what else the model reports, rates and times last.
std::string plots(const std::map<std::string, Curve>& curves) {
  std::map<std::string, Chart> charts;
  for (const auto& [name, points] : curves) {
    if (name == "step" || name == "epoch" || points.size() < 2 || repeats_another(name, curves))
      continue;
    Chart chart = chart_of(name);
    Series series{.name = series_name(name), .x = {}, .y = {}};
    for (const auto& [x, y] : points) {
      series.x.push_back(x);
      series.y.push_back(y);
    }
    charts.try_emplace(chart.title, chart).first->second.series.push_back(std::move(series));
  }
  std::vector<Chart> ordered;
  for (auto& [title, chart] : charts) ordered.push_back(std::move(chart));
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const Chart& a, const Chart& b) { return a.place < b.place; });
  std::string html;
  for (const Chart& chart : ordered)
    html +=
        line_plot(chart.series,
                  {.title = chart.title, .x_label = "step", .log_y = needs_log_axis(chart.series)});
  return html;
}

std::string error_table(const fs::path& file) {
  if (!fs::exists(file)) return "";
  std::string rows;
  const Json results = parse_json(read_file(file), file.string());
  for (const auto& [metric, sets] : results.items())
    for (const auto& [set, values] : sets.items()) {
      const std::string name = metric.substr(metric.rfind('.') + 1);
      const Json interval = values.value("ci95", Json::array());
      rows += fmt::format(
          "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td>", escape_html(set), escape_html(name),
          values.value(name.substr(0, name.find('#')), Json()).dump(),
          interval.size() == 2 ? interval[0].dump() + " to " + interval[1].dump() : "");
      for (const char* key : {"substitutions", "deletions", "insertions", "utterances",
                              "utterances_with_errors", "utterances_not_decoded"})
        rows += "<td>" + (values.contains(key) ? values[key].dump() : "") + "</td>";
      rows += "</tr>";
    }
  return "<h2>Error rates</h2><table><tr><th>test set</th><th>metric</th><th>%</th><th>95 % "
         "interval</th><th>substitutions</th><th>deletions</th><th>insertions</th>"
         "<th>utterances</th><th>with errors</th><th>not decoded</th></tr>" +
         rows + "</table>";
}

// The line of training's log that begins so, without its beginning; empty: none.
std::string logged(const fs::path& exp_dir, std::string_view beginning) {
  for (const char* name : {"train_rank0.jsonl", "train.jsonl"}) {
    const fs::path file = exp_dir / "logs" / name;
    if (!fs::exists(file)) continue;
    for (const auto& line : split(read_file(file), '\n')) {
      const Json entry = Json::parse(line, nullptr, false);
      if (!entry.is_object()) continue;
      const std::string text = entry.value("message", "");
      if (text.rfind(beginning, 0) == 0) return text.substr(beginning.size());
    }
  }
  return "";
}

std::string facts(const fs::path& exp_dir) {
  std::vector<std::pair<std::string, std::string>> rows;
  const fs::path state = exp_dir / "checkpoints/last/trainer.json";
  if (fs::exists(state)) {
    const Json trainer = Json::parse(read_file(state), nullptr, false);
    if (trainer.is_object()) {
      rows.emplace_back("trained", fmt::format("{} epochs, {} steps in {}",
                                               trainer.value("epoch", std::int64_t{0}),
                                               trainer.value("step", std::int64_t{0}),
                                               format_duration(trainer.value("seconds", 0.0))));
      rows.emplace_back("ranks", std::to_string(trainer.value("world_size", 1)));
    }
  }
  rows.emplace_back("model", logged(exp_dir, "model: "));
  rows.emplace_back("strategy", logged(exp_dir, "strategy "));
  std::string html;
  for (const auto& [name, value] : rows)
    if (!value.empty())
      html += fmt::format("<tr><th>{}</th><td>{}</td></tr>", name, escape_html(value));
  return html.empty() ? "" : "<table>" + html + "</table>";
}

// RECIPE: TAG where the experiment lies as usual, RECIPE/exp/TAG.
std::string title_of(const fs::path& exp_dir) {
  const fs::path whole = fs::absolute(exp_dir).lexically_normal();
  const std::string tag = whole.filename().string();
  const fs::path parent = whole.parent_path();
  if (parent.filename() != "exp" || parent.parent_path().filename().empty()) return tag;
  return parent.parent_path().filename().string() + ": " + tag;
}

// Paths from the recipe's folder: a page is sent to others, for whom ours mean nothing.
std::string without_places(std::string yaml, const config::Node& training) {
  if (!training["recipe_dir"].is_scalar()) return yaml;
  const std::string recipe =
      fs::absolute(training["recipe_dir"].as<std::string>()).lexically_normal().string();
  for (std::size_t at = 0; recipe.size() > 1 && (at = yaml.find(recipe, at)) != std::string::npos;)
    yaml.replace(at, recipe.size(), ".");
  return yaml;
}

}  // namespace

fs::path write_report(const ReportInputs& inputs) {
  std::string html = fmt::format(
      R"(<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{0}</title><style>
:root {{ color-scheme: light dark }} body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 980px; margin: 0 auto; padding: 24px }}
table {{ border-collapse: collapse }} svg {{ max-width: 100% }} td, th {{ text-align: left; padding: 4px 12px; border-top: 1px solid #8884 }}
pre {{ overflow-x: auto; border: 1px solid #8884; border-radius: 8px; padding: 12px; font-size: 12px }}
</style></head><body><h1>{0}</h1><p>{1}</p>)",
      escape_html(title_of(inputs.exp_dir)), utc_timestamp(Clock::system().unix_seconds()));
  html += facts(inputs.exp_dir);
  html += error_table(inputs.inference_dir / "metrics.json");
  if (fs::exists(inputs.inference_dir / "metrics.html"))
    html += fmt::format(
        R"(<p><a href="{}">every error, aligned</a></p>)",
        escape_html(fs::relative(inputs.inference_dir / "metrics.html", inputs.exp_dir).string()));
  html += "<h2>Training</h2>" + plots(read_curves(inputs.exp_dir / "metrics.jsonl"));
  if (inputs.training.defined())
    html += "<h2>Config</h2><pre>" +
            escape_html(without_places(config::to_yaml(inputs.training), inputs.training)) +
            "</pre>";
  html += "</body></html>\n";
  const fs::path path = inputs.exp_dir / "report.html";
  write_file_atomic(path, html);
  return path;
}

}  // namespace tutti::systems
