#pragma once
#include <string>
#include <vector>

namespace verbena::tools::nccl {

struct NcclCandidate {
  std::string path;
  std::string source;   // where it was found: "--nccl", "$NCCL_LIB", "loader", "CUDA", "python3"
  std::string version;  // empty if it could not be loaded; `problem` says why
  std::string problem;
};

// Lists all libnccl.so.2 of this machine, each once, in the order of preference. With `wanted`, a file or a
// folder, lists only that library. A separate process loads each candidate to get its version.
std::vector<NcclCandidate> find_nccl_libraries(const std::string& wanted);

// The first candidate that can be loaded. If there is none, throws ToolError with all that were tried.
NcclCandidate choose_nccl(const std::vector<NcclCandidate>& candidates);

// The hidden mode --probe-nccl: writes the version of one library to the control channel.
int run_nccl_probe(const std::string& path);

}  // namespace verbena::tools::nccl
