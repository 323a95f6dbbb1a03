// Line plots as SVG text, for pages that must work offline and be one file.
#pragma once

#include <string>
#include <vector>

namespace tutti::systems {

struct Series {
  std::string name;
  std::vector<double> x;
  std::vector<double> y;  // as many as x; non-finite points break the line
};

struct PlotOptions {
  std::string title;
  std::string x_label;
  bool log_y = false;  // points at or below zero are left out
  int width = 460;
  int height = 260;
};

// An <svg> element. Series with more points than pixels are thinned, keeping each pixel's extremes.
std::string line_plot(const std::vector<Series>& series, const PlotOptions& options);

}  // namespace tutti::systems
