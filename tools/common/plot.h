#pragma once
#include <string>
#include <vector>

#include "common/result.h"

namespace verbena::tools {

struct PlotSeries {
  std::string name;
  size_t color = 0;        // series of one color belong together
  bool is_dashed = false;  // not the median
  std::vector<double> x;   // sizes, or places among the categories
  std::vector<double> y;
};

// One picture: lines over sizes, both axes logarithmic, or bars over categories.
struct Plot {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<std::string> categories = {};  // empty: lines
  std::vector<PlotSeries> series = {};
};

// A plot for each unit among the plotted columns.
std::vector<Plot> list_plots(const ResultTable& table);

// Colors that gnuplot writes into its SVG, for who wants others: of text and axes, of the grid, of series.
extern const char* const kInkColor;
extern const char* const kGridColor;
extern const std::vector<std::string> kSeriesColors;

// gnuplot's program for plots one below the other, `columns` side by side.
std::string write_plot_program(const std::vector<Plot>& plots, const std::string& svg_file, size_t columns,
                               bool has_background);

// Why nothing can be drawn here; empty where it can.
std::string find_plot_problem();

// Throws ToolError where gnuplot is missing or fails.
void draw_plots(const std::vector<Plot>& plots, const std::string& svg_file, size_t columns,
                bool has_background = true);

}  // namespace verbena::tools
