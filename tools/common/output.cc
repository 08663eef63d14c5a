#include "common/output.h"

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>

#include "common/error.h"
#include "common/machine.h"
#include "common/plot.h"
#include "common/release.h"
#include "common/result_comparison.h"

namespace verbena::tools {
namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string format_utc(std::time_t time) {
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// So that it can be pasted into a shell.
std::string quote_argument(const std::string& argument) {
  const bool is_plain = !argument.empty() && argument.find_first_not_of(
                                                 "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                                 "0123456789-_=+,./:@%^") == std::string::npos;
  if (is_plain) return argument;
  std::string quoted = "'";
  for (const char letter : argument) quoted += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return quoted + "'";
}

constexpr size_t kPlotColumns = 2;

void draw_result(const Result& result, const std::string& svg_file) {
  std::vector<Plot> plots;
  for (const ResultTable& table : result.tables) {
    for (Plot& plot : list_plots(table)) {
      plot.title = result.tool + ": " + plot.title;
      plots.push_back(std::move(plot));
    }
  }
  draw_plots(plots, svg_file, kPlotColumns);
}

// The status to leave with.
int compare_with_stored(const Result& result, const OutputOptions& options, int status) {
  const ResultComparison comparison(result, read_result(options.compare));
  std::FILE* const out = options.takes_stdout() ? stderr : stdout;
  std::fputs(comparison.format().c_str(), out);
  std::fflush(out);
  if (options.fail_below <= 0) return status;
  if (comparison.least_ratio() >= options.fail_below) return status;
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", comparison.least_ratio());
  std::fprintf(stderr, "%s: --fail-below: %s\n", result.tool.c_str(),
               comparison.count_rows() == 0 ? "there is nothing to judge by"
                                            : (comparison.least_row() + ": " + text + " times").c_str());
  return status == kExitOk ? kExitFailed : status;
}

}  // namespace

void write_text(const std::string& target, const std::string& text) {
  if (target == "-") {
    const bool is_written =
        std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
    if (!is_written) throw ToolError(std::string("cannot write to standard output: ") + std::strerror(errno));
    return;
  }
  std::ofstream file(target);
  file << text;
  if (!file.flush()) throw ToolError("cannot write " + target + ": " + std::strerror(errno));
}

Result begin_result(const std::string& tool, int argc, const char* const* argv) {
  Result result;
  result.tool = tool;
  result.version = release();
  result.command = tool;
  for (int index = 1; index < argc; ++index) result.command += " " + quote_argument(argv[index]);
  const double begin_s = now_s();
  result.started = format_utc(static_cast<std::time_t>(begin_s));
  result.duration_s = -begin_s;  // until it is delivered
  result.machine = describe_machine();
  result.environment = list_measured_environment();
  return result;
}

int deliver_result(Result& result, const OutputOptions& options, int status) {
  if (result.duration_s < 0) result.duration_s += now_s();
  if (!options.json.empty()) write_text(options.json, describe_result(result).dump(1) + "\n");
  if (!options.csv.empty()) write_text(options.csv, format_csv(result));
  if (!options.plot.empty()) draw_result(result, options.plot);
  if (!options.compare.empty()) return compare_with_stored(result, options, status);
  return status;
}

}  // namespace verbena::tools
