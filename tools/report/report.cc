#include "report/report.h"

#include <cstdio>

#include "common/error.h"
#include "common/option_style.h"
#include "common/plot.h"
#include "report/page.h"

namespace verbena::tools::report {
namespace {

struct Options {
  std::string folder;
  std::string output = "report.html";
};

// The status to leave with, or -1.
int parse_options(int argc, const char* const* argv, Options& options) {
  CLI::App app("Makes one HTML page of the results that --json of the tools has written into a folder.");
  app.add_option("DIR", options.folder, "the folder of *.json, or one of them")->required();
  app.add_option("--output,-o", options.output, "the page")->type_name("FILE")->capture_default_str();
  style_help(app, "verbena-perf report");
  try {
    app.parse(argc, argv);
    if (!find_plot_problem().empty()) throw CLI::ValidationError("DIR", find_plot_problem());
  } catch (const CLI::ParseError& error) {
    return leave_parsing(app, error);
  }
  return -1;
}

}  // namespace

int run_report(int argc, const char* const* argv) {
  Options options;
  if (const int status = parse_options(argc, argv, options); status >= 0) return status;
  try {
    const Collection collection = collect_results(options.folder);
    for (const std::string& reason : collection.left_out)
      std::fprintf(stderr, "verbena-perf report: left out: %s\n", reason.c_str());
    write_text(options.output, make_page(collection, options.folder));
    std::fprintf(options.output == "-" ? stderr : stdout, "%s: %zu results\n", options.output.c_str(),
                 collection.results.size());
    return kExitOk;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "verbena-perf report: %s\n", error.what());
    return kExitFailed;
  }
}

}  // namespace verbena::tools::report
