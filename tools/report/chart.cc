#include "report/chart.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/error.h"
#include "common/markup.h"

namespace verbena::tools::report {
namespace {

class TemporaryFile {
 public:
  TemporaryFile() : path_((std::filesystem::temp_directory_path() / "verbena-report-XXXXXX").string()) {
    const int descriptor = mkstemp(path_.data());
    if (descriptor < 0) throw ToolError("cannot make " + path_ + ": " + std::strerror(errno));
    close(descriptor);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() { unlink(path_.c_str()); }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

// gnuplot writes a color in two ways.
void replace_color(std::string& svg, const std::string& hex, const std::string& variable) {
  const auto value = std::strtoul(hex.c_str() + 1, nullptr, 16);
  const unsigned red = (value >> 16) & 255, green = (value >> 8) & 255, blue = value & 255;
  for (const char* format : {"rgb(%3u, %3u, %3u)", "rgb(%u,%u,%u)"}) {
    char written[32];
    std::snprintf(written, sizeof written, format, red, green, blue);
    replace_all(svg, written, "var(" + variable + ")");
  }
}

}  // namespace

std::string draw_chart(const Plot& plot, size_t number) {
  const TemporaryFile file;
  draw_plots({plot}, file.path(), 1, false);
  std::ifstream stream(file.path());
  std::string svg{std::istreambuf_iterator<char>(stream), {}};
  const size_t begin = svg.find("<svg");
  if (begin == std::string::npos) throw ToolError("gnuplot has drawn nothing for " + plot.title);
  svg.erase(0, begin);
  const std::string title = escape_markup(plot.title + ", " + plot.y_label);
  svg.insert(4, " role=\"img\" aria-label=\"" + title + "\"");
  replace_all(svg, "<title>Gnuplot</title>", "<title>" + title + "</title>");
  const std::string prefix = "chart" + std::to_string(number) + "-";
  for (const std::string start : {"id='", "id=\"", "xlink:href='#", "url(#"})
    replace_all(svg, start, start + prefix);
  replace_color(svg, kInkColor, "--ink");
  replace_color(svg, kGridColor, "--grid");
  for (size_t color = 0; color < kSeriesColors.size(); ++color)
    replace_color(svg, kSeriesColors[color], "--series-" + std::to_string(color));
  return svg;
}

}  // namespace verbena::tools::report
