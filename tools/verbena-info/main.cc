#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <sstream>

#include "base/parameters.h"
#include "common/child_group.h"
#include "common/error.h"
#include "common/nccl_search.h"
#include "common/option_style.h"
#include "common/output.h"
#include "common/program.h"
#include "common/self_path.h"
#include "tuner/calibration_file.h"
#include "tuner/ops_model.h"
#include "verbena-info/advice.h"
#include "verbena-info/check.h"
#include "verbena-info/collect.h"
#include "verbena-info/options.h"
#include "verbena-info/self_test.h"
#include "verbena-info/text.h"

namespace verbena::tools::info {
namespace {

constexpr double kDrawTimeoutS = 60;
// The names of VERBENA_OPS_ALGORITHM.
constexpr const char* kOpsAlgorithms[] = {"auto",          "one-shot",      "two-shot",
                                          "bulk-one-shot", "bulk-two-shot", "lossless"};
constexpr const char* kFooter =
    "Exit status: 0 success; 1 wrong setting, failed plugin, failed self-test or wrong data; 2 usage "
    "error;\n4 no usable device.";

// Returns the exit status, or -1 to continue.
int parse_options(int argc, const char* const* argv, InfoOptions& options) {
  CLI::App app(
      "Shows the RDMA devices, rails and GPUs of this host, the devices that NCCL would see, and the "
      "settings.");
  app.option_defaults()->group("What is shown");
  app.add_flag(
      "--check", options.check,
      "only run tests. The tool sends messages over every rail, from and to host memory and every GPU, with "
      "staged receives and over joined rails. The tool checks the data, the order of messages and the flush");
  app.add_flag("--self-test", options.self_test,
               "only run the self-test of each RDMA device, in host memory and in the memory of each GPU. "
               "The self-test tries each type of work request that messages use. The tool prints one line of "
               "JSON, which you can attach to a report about a NIC");
  app.add_flag("--parameters", options.parameters,
               "show all settings with their defaults (without this option, only the settings that are set)");
  app.add_flag("--all", options.all, "with --parameters: show the advanced settings too")
      ->needs("--parameters");
  app.add_flag("--verbose,-v", options.verbose, "show all log lines of the plugin, and every GID");
  app.add_option(
         "--explain", options.explain,
         "show only which algorithm libverbena_ops.so chooses for an operation (using VERBENA_TUNING_FILE), "
         "and why. Examples: all_reduce:512k:4 for four ranks, all_reduce:1m:4x2 for four ranks on two hosts")
      ->type_name("OPERATION:BYTES:RANKS[xHOSTS]");
  app.add_option("--from", options.from,
                 "show a document that --json wrote, for example on another host. If FILE is -, read the "
                 "document from standard input")
      ->type_name("FILE");
  app.option_defaults()->group("Output");
  add_target_option(
      app, "--json", options.json,
      "write everything to FILE as a JSON document. If FILE is - or missing, print only the JSON");
  app.add_option("--topology", options.topology,
                 "write a drawing of GPUs, NICs and rails to FILE. If the name of FILE ends with .svg, "
                 "Graphviz's dot makes an SVG picture; otherwise the tool writes the input for dot")
      ->type_name("FILE");
  app.add_option("--topology-xml", options.topology_xml, "write a topology file for NCCL_TOPO_FILE")
      ->type_name("FILE");
  app.option_defaults()->group("How");
  app.add_option(
         "--plugin", options.plugin,
         "libnccl-net.so to examine. Default: libnccl-net.so in the folder ../lib relative to this tool")
      ->type_name("FILE")
      ->take_last();
  app.add_option("--nccl", options.nccl,
                 "libnccl.so.2 to examine. Default: every libnccl.so.2 that the tool finds")
      ->type_name("FILE")
      ->take_last();
  add_timeout_option(app, options.timeout_s);
  app.add_option("--child", options.child)->group("");
  app.add_option("--probe-nccl", options.probed_nccl)->group("");
  style_help(app, "verbena-info");
  app.footer(kFooter);
  try {
    app.parse(argc, argv);
    if (options.check && !options.from.empty())
      throw CLI::ValidationError(
          "--check", "tests this host, but --from shows another host; use only one of the two options");
    if (options.plugin.empty()) options.plugin = find_default_plugin().string();
  } catch (const CLI::ParseError& error) {
    return leave_parsing(app, error);
  }
  return -1;
}

Document read_document(const std::string& path) {
  std::stringstream text;
  if (path == "-") {
    text << std::cin.rdbuf();
  } else {
    std::ifstream file(path);
    if (!file) throw ToolError("cannot read " + path + ": " + std::strerror(errno));
    text << file.rdbuf();
  }
  return parse_document(text.str(), path);
}

void write_file(const std::string& path, const std::string& text) {
  if (path.empty()) return;
  write_text(path, text);
  if (path != "-") std::fprintf(stderr, "# wrote %s\n", path.c_str());
}

void write_picture(const std::string& path, const std::string& graph) {
  if (!path.ends_with(".svg")) return write_file(path, graph);
  const std::string dot = find_program("dot");
  if (dot.empty())
    throw ToolError("cannot draw " + path +
                    ": the program dot was not found in the PATH. Install graphviz, or write the input for "
                    "dot with --topology FILE.dot");
  const ProgramResult drawn = run_program({dot, "-Tsvg", "-o", path}, graph, kDrawTimeoutS);
  if (drawn.status != 0) throw ToolError("cannot draw " + path + ": dot: " + drawn.output);
  std::fprintf(stderr, "# wrote %s\n", path.c_str());
}

// Uses only the measurements, no GPU.
int explain(const std::string& text) {
  std::string problem;
  const auto question = tuner::parse_question(text, problem);
  if (!question) throw UsageError("--explain " + text + ": " + problem);
  if (!base::load_parameters()) throw ToolError("the settings are wrong");
  const base::Parameters& parameters = base::parameters();
  const std::string& path = parameters.tuning_file;
  tuner::Calibration calibration;
  if (!path.empty() && path != "auto" && path != "none") {
    const auto parsed = tuner::read_calibration_file(path);
    if (!parsed.calibration) throw ToolError("the tuning file " + path + ": " + parsed.problem);
    calibration = *parsed.calibration;
  }
  const auto forced = static_cast<size_t>(parameters.ops_algorithm);
  write_text("-",
             tuner::explain_ways(calibration.ops, *question, "", forced == 0 ? "" : kOpsAlgorithms[forced]));
  return kExitOk;
}

int run_tool(const InfoOptions& options) {
  if (!options.explain.empty()) return explain(options.explain);
  Document document = options.from.empty() ? collect_document(options) : read_document(options.from);
  if (options.from.empty()) document.advice = list_advice(document);
  // With --json -, only the document goes to standard output.
  const auto print = [&](const std::string& text) {
    if (options.json != "-") write_text("-", text);
  };
  if (options.check) {
    run_checks(document, options, [&](const Check& check) { print(format_check(document, check)); });
    print(format_verdict(*document.checks));
  } else {
    print(format_document(document, {options.parameters, options.all, options.verbose}));
  }
  write_file(options.json, format_json(document));
  if (!options.topology.empty()) write_picture(options.topology, draw_topology(document));
  if (!options.topology_xml.empty()) write_file(options.topology_xml, format_topology_xml(document));
  return judge(document);
}

int run_child(const InfoOptions& options) {
  prepare_child_process();
  return options.child == "view" ? run_plugin_view(options) : run_rail_tests(options);
}

int run(int argc, const char* const* argv) {
  InfoOptions options;
  if (const int status = parse_options(argc, argv, options); status >= 0) return status;
  return report_errors("verbena-info", [&] {
    if (!options.probed_nccl.empty()) return nccl::run_nccl_probe(options.probed_nccl);
    if (options.self_test) return run_self_tests();
    return options.child.empty() ? run_tool(options) : run_child(options);
  });
}

}  // namespace
}  // namespace verbena::tools::info

int main(int argc, char** argv) {
  return verbena::tools::info::run(argc, argv);
}
