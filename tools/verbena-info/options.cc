#include "verbena-info/options.h"

#include <CLI/CLI.hpp>

#include "common/error.h"
#include "common/self_path.h"

namespace verbena::tools::info {

Options parse_options(int argc, const char* const* argv) {
  Options options;
  CLI::App app(
      "Shows what Verbena finds on this host: devices and rails, GPUs, what NCCL would see, settings.\n"
      "Exit status: 0 all is well, 1 --check found wrong data or something does not work, 2 usage, 4 no "
      "device.");
  app.set_version_flag("--version", "verbena-info " VERBENA_RELEASE);
  app.add_flag("--check", options.check,
               "test every rail with host memory and with every GPU: data, order, flush");
  app.add_flag("--parameters", options.parameters, "show all parameters, not only those that are set");
  app.add_flag("--json", options.json, "print one JSON document with everything");
  app.add_option("--topology", options.topology,
                 "write a picture of GPUs, NICs and rails to this file (SVG)");
  app.add_option("--topology-xml", options.topology_xml, "write a topology file for NCCL_TOPO_FILE");
  app.add_option("--from", options.from, "show what another host's --json said ('-': standard input)");
  app.add_option("--plugin", options.plugin, "libnccl-net.so to ask (default: ../lib beside this tool)")
      ->take_last();
  app.add_option("--nccl", options.nccl, "the only libnccl.so.2 to look at (default: all that are found)")
      ->take_last();
  app.add_option("--timeout", options.timeout_s, "seconds any one step may take")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  app.add_flag("--verbose,-v", options.verbose, "show all that the plugin says, and every GID");
  app.add_option("--child", options.child)->group("");
  app.add_option("--probe-nccl", options.probed_nccl)->group("");
  try {
    app.parse(argc, argv);
    if (options.check && !options.from.empty()) throw CLI::ValidationError("--check", "tests this host only");
    if (options.plugin.empty()) options.plugin = find_default_plugin().string();
  } catch (const CLI::ParseError& error) {
    options.exit_status = app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  return options;
}

}  // namespace verbena::tools::info
