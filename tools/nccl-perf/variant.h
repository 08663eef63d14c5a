#pragma once
#include <string>
#include <utility>
#include <vector>

#include "common/environment.h"
#include "nccl-perf/options.h"

namespace verbena::tools::nccl {

// One way to run everything once: which transport, and with which of its settings.
struct Variant {
  enum class Transport { kPlugin, kSocket, kIb };
  std::string name;
  Transport transport = Transport::kPlugin;
  std::string unpack;                                              // "", "0" or "1"
  std::vector<std::pair<std::string, std::string>> settings = {};  // what it is about besides
  std::vector<std::string> arguments = {};                         // for its processes
};

// Whether NCCL's word for the network it used ("Using network ...") is what the variant is about: a plugin
// that cannot be loaded leaves NCCL with its own transports. Nothing in the log says nothing.
bool is_network_of(const Variant& variant, const std::string& network);

// What --unpack and --against ask for; the first is what the others are compared with.
std::vector<Variant> list_variants(const Options& options);

// The environment of a variant's processes. Settings of the user win over the defaults that make one host
// look like many nodes; the tool's options, and what a variant is about, win over the user's.
Environment make_environment(const Options& options, const Variant& variant);

// The same for one rank: its own host identity, and a file for NCCL's log.
Environment make_rank_environment(const Environment& shared, int rank, const std::string& log_file);

}  // namespace verbena::tools::nccl
