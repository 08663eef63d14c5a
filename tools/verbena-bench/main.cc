#include <CLI/CLI.hpp>
#include <string_view>

#include "common/option_style.h"
#include "verbena-bench/subcommands.h"

namespace {

struct Subcommand {
  const char* name;
  const char* about;
  int (*run)(int argc, char** argv);
};
// The build leaves out those whose parts it cannot compile.
constexpr Subcommand kSubcommands[] = {
#ifdef VERBENA_BENCH_COLL
    {"coll", "collectives between GPUs, and dispatch and combine of a mixture of experts",
     verbena::tools::coll::run_tool},
#endif
#ifdef VERBENA_BENCH_UNPACK
    {"unpack", "messages that a GPU unpacks as NCCL's kernels would", verbena::tools::unpack::run_tool},
#endif
    {"symm", "symmetric memory between GPUs", verbena::tools::symm::run_tool},
};

}  // namespace

int main(int argc, char** argv) {
  for (const Subcommand& subcommand : kSubcommands)
    if (argc > 1 && std::string_view(argv[1]) == subcommand.name) return subcommand.run(argc - 1, argv + 1);
  CLI::App app(
      "Checks every byte that the GPUs of this host transfer, then measures the speed of the transfers. Each "
      "subcommand has its own --help.");
  for (const Subcommand& subcommand : kSubcommands) app.add_subcommand(subcommand.name, subcommand.about);
  app.require_subcommand(1);
  verbena::tools::style_help(app, "verbena-bench");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return verbena::tools::leave_parsing(app, error);
  }
  return 0;
}
