#include "tutti/systems/report/report.h"

#include <fmt/format.h>

#include <map>

#include "tutti/core/clock.h"
#include "tutti/core/file.h"
#include "tutti/core/json.h"
#include "tutti/core/text.h"
#include "tutti/speech/metrics/report.h"
#include "tutti/systems/report/svg_plot.h"

namespace tutti::systems {
namespace {

namespace fs = std::filesystem;
using speech::escape_html;

// metric -> its points over optimizer steps. A resumed run writes a step again; the last one
// counts.
std::map<std::string, std::map<double, double>> read_curves(const fs::path& file) {
  std::map<std::string, std::map<double, double>> curves;
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

// train/loss and valid/loss share a plot titled "loss".
std::string plots(const std::map<std::string, std::map<double, double>>& curves) {
  std::map<std::string, std::vector<Series>> by_title;
  for (const auto& [name, points] : curves) {
    if (name == "step" || name == "epoch" || points.size() < 2) continue;
    const auto slash = name.find('/');
    Series series{
        .name = slash == std::string::npos ? "" : name.substr(0, slash), .x = {}, .y = {}};
    for (const auto& [x, y] : points) {
      series.x.push_back(x);
      series.y.push_back(y);
    }
    by_title[slash == std::string::npos ? name : name.substr(slash + 1)].push_back(
        std::move(series));
  }
  std::string html;
  for (const auto& [title, series] : by_title)
    html += line_plot(series, {.title = title, .x_label = "step"});
  return html;
}

std::string error_table(const fs::path& file) {
  if (!fs::exists(file)) return "";
  std::string rows;
  const Json results = parse_json(read_file(file), file.string());
  for (const auto& [metric, sets] : results.items())
    for (const auto& [set, values] : sets.items()) {
      const std::string interval = values.contains("ci95") ? values["ci95"].dump() : "";
      rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                          escape_html(metric.substr(metric.rfind('.') + 1)), escape_html(set),
                          values.empty() ? "" : values.begin().value().dump(), interval);
    }
  return "<h2>Error rates</h2><table><tr><th>metric</th><th>test set</th><th>%</th><th>95 % "
         "interval</th></tr>" +
         rows + "</table>";
}

}  // namespace

fs::path write_report(const ReportInputs& inputs) {
  std::string html = fmt::format(
      R"(<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{0}</title><style>
:root {{ color-scheme: light dark }} body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 980px; margin: 0 auto; padding: 24px }}
table {{ border-collapse: collapse }} td, th {{ text-align: left; padding: 4px 12px; border-top: 1px solid #8884 }}
pre {{ overflow-x: auto; border: 1px solid #8884; border-radius: 8px; padding: 12px; font-size: 12px }}
</style></head><body><h1>{0}</h1><p>{1}</p>)",
      escape_html(inputs.exp_dir.filename().string()),
      utc_timestamp(Clock::system().unix_seconds()));
  html += error_table(inputs.inference_dir / "metrics.json");
  if (fs::exists(inputs.inference_dir / "metrics.html"))
    html += fmt::format(
        R"(<p><a href="{}">every error, aligned</a></p>)",
        escape_html(fs::relative(inputs.inference_dir / "metrics.html", inputs.exp_dir).string()));
  html += "<h2>Training</h2>" + plots(read_curves(inputs.exp_dir / "metrics.jsonl"));
  if (inputs.training.defined())
    html += "<h2>Config</h2><pre>" + escape_html(config::to_yaml(inputs.training)) + "</pre>";
  html += "</body></html>\n";
  const fs::path path = inputs.exp_dir / "report.html";
  write_file_atomic(path, html);
  return path;
}

}  // namespace tutti::systems
