#include "common/option_style.h"

#include <memory>
#include <sstream>

#include "common/clock.h"
#include "common/error.h"
#include "common/self_path.h"
#include "common/size.h"

namespace verbena::tools {
namespace {

constexpr size_t kNameWidth = 30;
constexpr size_t kDescriptionWidth = 68;
constexpr const char* kFooter =
    "Sizes: 64, 4K, 1M, 2G (powers of 1024). Times: 500ms, 30s, 2m (seconds without a unit).\nExit status: 0 "
    "success, 1 wrong data or a failure, 2 usage error, 3 hang, 4 no GPU or library.";

// The parts of a type such as "UINT:INT in [1 - 8]".
struct ValueKind {
  std::string name;   // N, TEXT, FILE, {a,b}
  std::string range;  // "1 to 8"
};

ValueKind describe_kind(const std::string& type) {
  const size_t colon = type.find(':');
  ValueKind kind{type.substr(0, colon), ""};
  const std::string rule = colon == std::string::npos ? "" : type.substr(colon + 1);
  if (rule.starts_with('{')) kind.name = rule.substr(0, rule.find('}') + 1);
  const size_t open = rule.find(" in ["), dash = rule.find(" - "), close = rule.find(']');
  if (open != std::string::npos && dash != std::string::npos && close != std::string::npos)
    kind.range = rule.substr(open + 5, dash - open - 5) + " to " + rule.substr(dash + 3, close - dash - 3);
  if (kind.name == "INT" || kind.name == "UINT") kind.name = "N";
  if (kind.name == "BOOLEAN") kind.name = "0|1";
  return kind;
}

// One entry for each option: its description, broken into lines, and then its possible values.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_items_expected_max() == 0) return "";
    return " " + describe_kind(option->get_type_name()).name;
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    const std::string range = describe_kind(option->get_type_name()).range;
    const std::string value = option->get_items_expected_max() == 0 ? "" : option->get_default_str();
    std::string notes = range;
    if (!value.empty()) notes += (notes.empty() ? "" : "; ") + ("default " + value);
    return break_lines(option->get_description() + (notes.empty() ? "" : " (" + notes + ")"));
  }

 private:
  static std::string break_lines(const std::string& description) {
    std::istringstream words(description);
    std::string text;
    size_t line_length = 0;
    for (std::string word; words >> word; line_length += word.size() + 1) {
      const bool breaks = line_length + word.size() > kDescriptionWidth;
      if (!text.empty()) text += breaks ? '\n' : ' ';
      if (breaks) line_length = 0;
      text += word;
    }
    return text;
  }
};

}  // namespace

void style_help(CLI::App& app, const std::string& tool) {
  auto formatter = std::make_shared<HelpFormatter>();
  formatter->column_width(kNameWidth);
  app.formatter(formatter);
  app.name(tool);
  app.footer(kFooter);
  app.option_defaults()->group("Options");
  app.set_version_flag("--version", describe_release(tool.c_str()), "print the version and exit");
}

void add_size_options(CLI::App& app, SizeOptions& options) {
  app.add_option("--sizes", options.sizes,
                 "message sizes: one size, a range BEGIN:END (each size is --factor times the previous "
                 "size), or a list")
      ->type_name("SIZES")
      ->capture_default_str();
  app.add_option("--size", options.sizes)->group("");
  add_range_option(app, "--factor,-f", options.factor,
                   "in a range of sizes, the ratio of each size to the previous size", 2, 1 << 20);
}

std::vector<uint64_t> resolve_sizes(const SizeOptions& options) {
  const auto sizes_bytes = parse_size_list(options.sizes, options.factor);
  if (!sizes_bytes)
    throw CLI::ValidationError("--sizes", "cannot read " + options.sizes + "; write 8, 8:64M, or 4K,64K,1M");
  return *sizes_bytes;
}

CLI::Option* add_duration_option(CLI::App& app, const std::string& names, double& seconds,
                                 const std::string& help, double min_s, double max_s) {
  const auto take = [=, &seconds](const std::string& text) {
    const auto parsed = parse_duration_s(text);
    if (!parsed) throw CLI::ValidationError(names, "cannot read " + text + "; write 30s, 500ms, or 2m");
    if (*parsed < min_s || *parsed > max_s) {
      throw CLI::ValidationError(
          names, text + " is out of range: " + format_duration(min_s) + " to " + format_duration(max_s));
    }
    seconds = *parsed;
  };
  CLI::Option* const option = app.add_option_function<std::string>(names, take, help)->type_name("TIME");
  if (seconds > 0) option->default_str(format_duration(seconds));
  return option;
}

void add_timeout_option(CLI::App& app, double& timeout_s, const std::string& help) {
  constexpr double kMinS = 0.1, kMaxS = 3600;
  add_duration_option(app, "--timeout", timeout_s, help, kMinS, kMaxS);
}

void add_target_option(CLI::App& app, const std::string& name, std::string& target, const std::string& help) {
  app.add_option_function<std::string>(
         // Without a value CLI11 passes "" or "true", depending on its release.
         name, [&target](const std::string& text) { target = text.empty() || text == "true" ? "-" : text; },
         help)
      ->expected(0, 1)
      ->type_name("[FILE]");
}

void add_output_options(CLI::App& app, OutputOptions& options) {
  app.option_defaults()->group("Output");
  add_target_option(app, "--json", options.json,
                    "write the result, the command line and a description of the machine to FILE as JSON. If "
                    "FILE is - or missing, print only the JSON");
  add_target_option(
      app, "--csv", options.csv,
      "write the rows to FILE as comma-separated values. If FILE is - or missing, print these rows");
  app.add_option("--plot", options.plot,
                 "draw a plot of the results and write it to this SVG file (needs gnuplot)")
      ->type_name("FILE");
  CLI::Option* const compare = app.add_option("--compare", options.compare,
                                              "compare with an earlier result that --json wrote, and show "
                                              "the factor by which each figure improved")
                                   ->type_name("FILE");
  app.add_option("--fail-below", options.fail_below,
                 "with --compare: exit with status 1 if the factor of any median is less than this value. "
                 "For example, 0.9 allows results that are 10 % worse")
      ->needs(compare)
      ->check(CLI::Range(0.0, 1000.0))
      ->type_name("RATIO");
}

void check_output_options(const OutputOptions& options) {
  if (options.json == "-" && options.csv == "-")
    throw CLI::ValidationError(
        "--csv", "--json already writes to standard output; give a file name to one of the two options");
  if (options.plot == "-") throw CLI::ValidationError("--plot", "needs a file, not -");
  if (!options.plot.empty() && !find_plot_problem().empty())
    throw CLI::ValidationError("--plot", find_plot_problem());
  if (options.compare.empty()) return;
  const std::string problem = find_compare_problem(options.compare);
  if (!problem.empty()) throw CLI::ValidationError("--compare", problem);
}

int leave_parsing(const CLI::App& app, const CLI::ParseError& error) {
  return app.exit(error) == 0 ? kExitOk : kExitUsage;
}

int parse_arguments(CLI::App& app, int argc, const char* const* argv, const std::function<void()>& resolve) {
  try {
    app.parse(argc, argv);
    resolve();
    return -1;
  } catch (const CLI::ParseError& error) {
    return leave_parsing(app, error);
  }
}

}  // namespace verbena::tools
