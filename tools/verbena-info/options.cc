#include "verbena-info/options.h"

#include "common/option_style.h"
#include "common/self_path.h"

namespace verbena::tools::info {
namespace {

constexpr const char* kFooter =
    "Exit status: 0 all right, 1 a setting, the plugin or a self-test does not work, or data is wrong, 2 "
    "usage,\n"
    "4 no usable device.";

}  // namespace

Options parse_options(int argc, const char* const* argv) {
  Options options;
  CLI::App app(
      "Shows what Verbena finds on this host: devices and rails, GPUs, what NCCL would see, settings.");
  app.option_defaults()->group("What is shown");
  app.add_flag(
      "--check", options.check,
      "instead test every rail with host memory and every GPU, staged receives and joined rails: data, "
      "order, flush");
  app.add_flag("--parameters", options.parameters, "show all parameters, not only those that are set");
  app.add_flag("--verbose,-v", options.verbose, "show all that the plugin says, and every GID");
  app.add_option("--from", options.from, "show what another host's --json said (-: standard input)")
      ->type_name("FILE");
  app.option_defaults()->group("Output");
  add_target_option(app, "--json", options.json,
                    "write one JSON document with everything to FILE, or alone to standard output (-)");
  app.add_option("--topology", options.topology, "draw GPUs, NICs and rails into this SVG file")
      ->type_name("FILE");
  app.add_option("--topology-xml", options.topology_xml, "write a topology file for NCCL_TOPO_FILE")
      ->type_name("FILE");
  app.option_defaults()->group("How");
  app.add_option("--plugin", options.plugin, "libnccl-net.so to ask (default ../lib beside this tool)")
      ->type_name("FILE")
      ->take_last();
  app.add_option("--nccl", options.nccl, "the only libnccl.so.2 to look at (default all that are found)")
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
      throw CLI::ValidationError("--check", "tests this host, --from shows another: leave one of them out");
    if (options.plugin.empty()) options.plugin = find_default_plugin().string();
  } catch (const CLI::ParseError& error) {
    options.exit_status = leave_parsing(app, error);
  }
  return options;
}

}  // namespace verbena::tools::info
