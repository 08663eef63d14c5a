// Collects the state of this host.
#pragma once
#include <set>
#include <string>

#include "verbena-info/child.h"
#include "verbena-info/document.h"
#include "verbena-info/options.h"

namespace verbena::tools::info {

// Collects everything about this host. Does not throw if something is missing; the document then says so.
Document collect_document(const InfoOptions& options);

// The parts of collect_document(). Ports, the plugin's devices, parameters and why init fails, found by the
// plugin's own code in this process; needs `gpus` of the document.
void collect_ports(Document& document);

// Collects what NCCL would see: loads the plugin's table like NCCL does, in a separate process, so that a
// crash there does not end the tool. `environment` is the user's environment.
void collect_view(Document& document, const InfoOptions& options, const Environment& environment);
// Runs in that process.
int run_plugin_view(const InfoOptions& options);

// The libraries of NCCL, and which of the plugin's tables each would load.
void collect_nccl_libraries(Document& document, const std::string& wanted);
// The numbers after `prefix`, such as "ncclNetPlugin_v", in the names that a file contains: NCCL looks up its
// plugins' tables by these names. Reads the file without running it. Empty if it cannot be read.
std::vector<int> read_table_names(const std::string& path, const std::string& prefix);
// The newest of `wanted` that is also in `exported`, as NCCL chooses it; both are ascending.
std::optional<int> choose_table(const std::vector<int>& wanted, const std::vector<int>& exported);

// Decides from the view and the parameters whether the plugin offers UNPACK to NCCL, and why.
UnpackOffer explain_unpack(const Document& document);

// Reads the first line of a file in /sys; empty if there is no such file.
std::string read_first_line(const std::string& path);

}  // namespace verbena::tools::info
