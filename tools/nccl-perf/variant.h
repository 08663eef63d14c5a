#pragma once
#include <string>
#include <utility>
#include <vector>

#include "common/environment.h"
#include "nccl-perf/options.h"

namespace verbena::tools::nccl {

// One variant of all runs: a transport and its settings.
struct Variant {
  enum class Transport { kPlugin, kSocket, kIb };
  std::string name;
  Transport transport = Transport::kPlugin;
  std::string unpack;                                              // "", "0" or "1"
  std::vector<std::pair<std::string, std::string>> settings = {};  // other settings
  std::vector<std::string> arguments = {};                         // of its processes
};

// Returns true if the network in NCCL's log ("Using network ...") is the variant's, or if the log has none:
// without a plugin that can be loaded, NCCL uses its own transports.
bool is_network_of(const Variant& variant, const std::string& network);

// Returns the variants of --unpack and --against. The first one is compared with all others.
std::vector<Variant> list_variants(const NcclPerfOptions& options);

// The environment of a variant's processes. The user's settings override the defaults that make one host look
// like many nodes; options of the tool and settings of the variant override the user's.
Environment make_environment(const NcclPerfOptions& options, const Variant& variant);

// The environment of one rank, with its own host identity and a file for NCCL's log.
// NCCL before 2.21 takes no path in NCCL_NET_PLUGIN: it loads libnccl-net-NAME.so, or libnccl-net.so without
// the variable, from the loader's path.
void fit_plugin_name(Environment& environment, const std::string& nccl_version);
Environment make_rank_environment(const Environment& shared, int rank, const std::string& log_file);

}  // namespace verbena::tools::nccl
