#include "tutti/systems/report/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tutti/speech/metrics/report.h"

namespace tutti::systems {
namespace {

using speech::escape_html;

constexpr std::array<const char*, 6> kColours = {"#2563eb", "#dc2626", "#059669",
                                                 "#9333ea", "#d97706", "#475569"};

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void include(double v) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  bool empty() const { return low > high; }
};

// The step of a round-numbered axis with about `count` ticks: 1, 2 or 5 times a power of ten.
double tick_step(double span, int count) {
  const double raw = span / count;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (raw <= factor * power) return factor * power;
  return 10 * power;
}

// At most two points per pixel column, its lowest and its highest, in order of x.
std::vector<std::pair<double, double>> thin(const std::vector<std::pair<double, double>>& points,
                                            int columns) {
  const auto limit = static_cast<std::size_t>(columns) * 2;
  if (points.size() <= limit) return points;
  std::vector<std::pair<double, double>> kept;
  const std::size_t stride =
      (points.size() + static_cast<std::size_t>(columns) - 1) / static_cast<std::size_t>(columns);
  for (std::size_t begin = 0; begin < points.size(); begin += stride) {
    const auto first = points.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last =
        points.begin() + static_cast<std::ptrdiff_t>(std::min(begin + stride, points.size()));
    auto [low, high] =
        std::minmax_element(first, last, [](auto& a, auto& b) { return a.second < b.second; });
    if (high < low) std::swap(low, high);
    kept.push_back(*low);
    if (high != low) kept.push_back(*high);
  }
  return kept;
}

}  // namespace

std::string line_plot(const std::vector<Series>& series, const PlotOptions& options) {
  constexpr int kLeft = 52;
  constexpr int kRight = 12;
  constexpr int kTop = 30;
  constexpr int kBottom = 34;
  const double width = options.width - kLeft - kRight;
  const double height = options.height - kTop - kBottom;
  const auto shown = [&](double v) { return options.log_y ? std::log10(v) : v; };
  const auto usable = [&](double x, double y) {
    return std::isfinite(x) && std::isfinite(y) && (!options.log_y || y > 0);
  };
  Range xs;
  Range ys;
  for (const auto& s : series) {
    for (std::size_t i = 0; i < s.x.size() && i < s.y.size(); ++i) {
      if (!usable(s.x[i], s.y[i])) continue;
      xs.include(s.x[i]);
      ys.include(shown(s.y[i]));
    }
  }
  std::string svg = fmt::format(
      R"(<svg viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" font-family="system-ui,sans-serif" font-size="11">)"
      R"(<text x="{2}" y="18" font-size="13" font-weight="600" fill="currentColor">{3}</text>)",
      options.width, options.height, kLeft, escape_html(options.title));
  if (xs.empty()) {
    svg += fmt::format(R"(<text x="{}" y="{}" fill="gray">no data</text></svg>)", kLeft + 8,
                       kTop + 20);
    return svg;
  }
  if (xs.low == xs.high) xs = {xs.low - 0.5, xs.high + 0.5};
  if (ys.low == ys.high)
    ys = {ys.low - std::max(0.5, std::abs(ys.low) * 0.1),
          ys.high + std::max(0.5, std::abs(ys.high) * 0.1)};
  const auto px = [&](double x) { return kLeft + (x - xs.low) / (xs.high - xs.low) * width; };
  const auto py = [&](double y) { return kTop + (1 - (y - ys.low) / (ys.high - ys.low)) * height; };

  const double y_step = tick_step(ys.high - ys.low, 5);
  for (double tick = std::ceil(ys.low / y_step) * y_step; tick <= ys.high + y_step * 1e-9;
       tick += y_step) {
    const double y = py(tick);
    svg += fmt::format(
        R"(<line x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}" stroke="currentColor" opacity="0.12"/>)",
        kLeft, options.width - kRight, y, y);
    svg += fmt::format(
        R"(<text x="{}" y="{:.1f}" text-anchor="end" fill="currentColor">{:.3g}</text>)", kLeft - 6,
        y + 4,
        options.log_y ? std::pow(10.0, tick) : (std::abs(tick) < y_step * 1e-6 ? 0.0 : tick));
  }
  const double x_step = tick_step(xs.high - xs.low, 6);
  for (double tick = std::ceil(xs.low / x_step) * x_step; tick <= xs.high + x_step * 1e-9;
       tick += x_step)
    svg += fmt::format(
        R"(<text x="{:.1f}" y="{}" text-anchor="middle" fill="currentColor">{:.6g}</text>)",
        px(tick), options.height - kBottom + 16, tick);
  svg += fmt::format(
      R"(<text x="{}" y="{}" text-anchor="end" fill="currentColor" opacity="0.7">{}</text>)",
      options.width - kRight, options.height - 4, escape_html(options.x_label));

  double legend_x = options.width - kRight;
  for (std::size_t k = series.size(); k-- > 0;) {
    const char* colour = kColours[k % kColours.size()];
    const auto& s = series[k];
    std::vector<std::pair<double, double>> run;
    const auto flush = [&] {
      if (run.empty()) return;
      std::string points;
      for (const auto& [x, y] : thin(run, static_cast<int>(width)))
        points += fmt::format("{:.1f},{:.1f} ", px(x), py(y));
      svg +=
          run.size() == 1
              ? fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="2.5" fill="{}"/>)",
                            px(run[0].first), py(run[0].second), colour)
              : fmt::format(R"(<polyline points="{}" fill="none" stroke="{}" stroke-width="1.6"/>)",
                            points, colour);
      run.clear();
    };
    for (std::size_t i = 0; i < s.x.size() && i < s.y.size(); ++i) {
      if (usable(s.x[i], s.y[i]))
        run.emplace_back(s.x[i], shown(s.y[i]));
      else
        flush();
    }
    flush();
    if (s.name.empty()) continue;
    svg += fmt::format(R"(<text x="{:.0f}" y="18" text-anchor="end" fill="{}">{}</text>)", legend_x,
                       colour, escape_html(s.name));
    legend_x -= 7.0 * static_cast<double>(s.name.size()) + 12;
  }
  return svg + "</svg>";
}

}  // namespace tutti::systems
