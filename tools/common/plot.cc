#include "common/plot.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "common/error.h"
#include "common/program.h"
#include "common/size.h"

namespace verbena::tools {

const char* const kInkColor = "#101112";
const char* const kGridColor = "#d0d1d2";
// Okabe and Ito's, which people who do not see all colors tell apart.
const std::vector<std::string> kSeriesColors{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                             "#e69f00", "#56b4e9", "#7f7f80", "#8c564b"};
namespace {

constexpr double kPlotTimeoutS = 60;
constexpr size_t kPanelWidth = 640, kPanelHeight = 400;
constexpr size_t kCategoryWidth = 90;
constexpr size_t kMostLabels = 9;

std::string quote(const std::string& text) {
  std::string quoted = "'";
  for (const char letter : text) {
    if (letter == '\n') continue;
    quoted += letter == '\'' ? std::string("''") : std::string(1, letter);
  }
  return quoted + "'";
}

bool is_positive(const Plot& plot) {
  return std::all_of(plot.series.begin(), plot.series.end(), [](const PlotSeries& series) {
    return std::all_of(series.y.begin(), series.y.end(), [](double y) { return y > 0; });
  });
}

// Of all sizes as many as fit.
void write_size_labels(std::ostream& out, const Plot& plot) {
  std::set<double> sizes;
  for (const PlotSeries& series : plot.series) sizes.insert(series.x.begin(), series.x.end());
  const size_t step = (sizes.size() + kMostLabels - 1) / kMostLabels;
  out << "set xtics nomirror rotate by 0 (";
  size_t left = sizes.size();
  bool is_first = true;
  for (const double size : sizes) {
    if (--left % step != 0) continue;  // the last one always
    out << (is_first ? "" : ", ") << quote(format_size(static_cast<uint64_t>(size))) << ' ' << size;
    is_first = false;
  }
  out << ") textcolor rgb '" << kInkColor << "'\n";
}

void write_lines(std::ostream& out, const Plot& plot) {
  const bool has_zero = std::any_of(plot.series.begin(), plot.series.end(), [](const PlotSeries& series) {
    return std::find(series.x.begin(), series.x.end(), 0.0) != series.x.end();
  });
  out << (has_zero ? "unset logscale x\n" : "set logscale x 2\n");
  out << (is_positive(plot) ? "set logscale y 10\nset yrange [*:*]\n"
                            : "unset logscale y\nset yrange [0:*]\n");
  write_size_labels(out, plot);
  out << "plot";
  for (size_t index = 0; index < plot.series.size(); ++index) {
    const PlotSeries& series = plot.series[index];
    out << (index == 0 ? " " : ", ") << "$series" << index << " using 1:2 with linespoints lw 2 pt "
        << (series.is_dashed ? 6 : 7) << " ps 0.5 dt " << (series.is_dashed ? 2 : 1) << " lc rgb '"
        << kSeriesColors[series.color % kSeriesColors.size()] << "' title " << quote(series.name);
  }
  out << '\n';
}

void write_bars(std::ostream& out, const Plot& plot) {
  out << "unset logscale\nset yrange [0:*]\nset xrange [-0.6:"
      << static_cast<double>(plot.categories.size()) - 0.4 << "]\nset xtics nomirror rotate by "
      << (plot.categories.size() > 3 ? -25 : 0) << " (";
  for (size_t index = 0; index < plot.categories.size(); ++index)
    out << (index == 0 ? "" : ", ") << quote(plot.categories[index]) << ' ' << index;
  out << ") textcolor rgb '" << kInkColor << "'\nplot";
  const double width = 0.8 / static_cast<double>(std::max<size_t>(plot.series.size(), 1));
  for (size_t index = 0; index < plot.series.size(); ++index) {
    const double shift = (static_cast<double>(index) + 0.5) * width - 0.4;
    out << (index == 0 ? " " : ", ") << "$series" << index << " using ($1+" << shift << "):2:("
        << width * 0.92 << ") with boxes fs solid " << (plot.series[index].is_dashed ? 0.45 : 0.9)
        << " noborder lc rgb '" << kSeriesColors[plot.series[index].color % kSeriesColors.size()]
        << "' title " << quote(plot.series[index].name);
  }
  out << '\n';
}

void write_panel(std::ostream& out, const Plot& plot) {
  for (size_t index = 0; index < plot.series.size(); ++index) {
    const PlotSeries& series = plot.series[index];
    out << "$series" << index << " << EOD\n";
    for (size_t point = 0; point < series.x.size(); ++point)
      out << series.x[point] << ' ' << series.y[point] << '\n';
    out << "EOD\n";
  }
  const std::string ink = std::string(" noenhanced textcolor rgb '") + kInkColor + "'\n";
  out << "set title " << quote(plot.title) << ink << "set xlabel " << quote(plot.x_label) << " offset 0,0.6"
      << ink << "set ylabel " << quote(plot.y_label) << ink << "set autoscale x\n"
      << (plot.series.size() > 1 ? "set key below height 1" + ink : "unset key\n");
  plot.categories.empty() ? write_lines(out, plot) : write_bars(out, plot);
}

}  // namespace

std::string write_plot_program(const std::vector<Plot>& plots, const std::string& svg_file, size_t columns,
                               bool has_background) {
  columns = std::max<size_t>(1, std::min(columns, plots.size()));
  const size_t rows = (plots.size() + columns - 1) / columns;
  size_t width = kPanelWidth;
  for (const Plot& plot : plots) width = std::max(width, plot.categories.size() * kCategoryWidth);
  std::ostringstream out;
  out << "set terminal svg size " << width * columns << ',' << kPanelHeight * rows
      << " dynamic enhanced font 'sans-serif,13'" << (has_background ? " background 'white'" : "")
      << "\nset output " << quote(svg_file) << "\nset border 3 lc rgb '" << kInkColor
      << "'\nset grid lc rgb '" << kGridColor << "' lt 1\nset ytics nomirror textcolor rgb '" << kInkColor
      << "' noenhanced\nset format y '%g'\n";
  if (plots.size() > 1) out << "set multiplot layout " << rows << ',' << columns << "\n";
  for (const Plot& plot : plots) write_panel(out, plot);
  if (plots.size() > 1) out << "unset multiplot\n";
  return out.str();
}

std::string find_plot_problem() {
  return find_program("gnuplot").empty() ? "no gnuplot in the PATH (Debian and Ubuntu: gnuplot-nox)" : "";
}

void draw_plots(const std::vector<Plot>& plots, const std::string& svg_file, size_t columns,
                bool has_background) {
  const std::string problem = find_plot_problem();
  if (!problem.empty()) throw ToolError("cannot draw " + svg_file + ": " + problem);
  if (plots.empty()) throw ToolError("cannot draw " + svg_file + ": there is no figure to draw");
  const ProgramResult drawn =
      run_program({find_program("gnuplot"), "-"},
                  write_plot_program(plots, svg_file, columns, has_background), kPlotTimeoutS);
  if (drawn.status != 0) throw ToolError("cannot draw " + svg_file + ": gnuplot: " + drawn.output);
}

}  // namespace verbena::tools
