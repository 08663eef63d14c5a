#pragma once
#include <string>
#include <vector>

namespace verbena::tools::nccl {

struct NcclCandidate {
  std::string path;
  std::string source;   // who named it: "--nccl", "$NCCL_LIB", "loader", "CUDA", "python3"
  std::string version;  // empty: could not be loaded, and `problem` says why
  std::string problem;
};

// All libnccl.so.2 of this machine in the order of preference, each once. With `wanted` (a file, or a folder
// that holds one) only that one. Every candidate is loaded in a process of its own to ask its version.
std::vector<NcclCandidate> find_nccl_libraries(const std::string& wanted);

// The candidate to use: the first that loads. Throws ToolError, naming what was tried, when there is none.
NcclCandidate choose_nccl(const std::vector<NcclCandidate>& candidates);

// The hidden --probe-nccl mode: prints the version of one library to the control channel.
int run_nccl_probe(const std::string& path);

}  // namespace verbena::tools::nccl
