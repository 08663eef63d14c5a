#pragma once
#include <string>
#include <vector>

#include "common/environment.h"
#include "nccl-perf/options.h"

namespace verbena::tools::nccl {

// One way to run everything once: which transport, and with which of its settings.
struct Variant {
  enum class Transport { kPlugin, kSocket, kIb };
  std::string name;
  Transport transport = Transport::kPlugin;
  std::string unpack;  // "", "0" or "1"
};

// What --unpack and --compare ask for; the first is what the others are compared with.
std::vector<Variant> list_variants(const Options& options);

// The environment of a variant's processes. Settings of the user win over the defaults that make one host
// look like many nodes; the tool's options, and what a variant is about, win over the user's.
Environment make_environment(const Options& options, const Variant& variant);

// The same for one rank: its own host identity, and a file for NCCL's log.
Environment make_rank_environment(const Environment& shared, int rank, const std::string& log_file);

}  // namespace verbena::tools::nccl
