// The subcommands: each takes the arguments that follow its name, and its name as argv[0]. They return the
// exit status.
#pragma once

namespace verbena::tools::coll {
int run_tool(int argc, char** argv);
}
namespace verbena::tools::symm {
int run_tool(int argc, char** argv);
}
namespace verbena::tools::unpack {
int run_tool(int argc, char** argv);
}
