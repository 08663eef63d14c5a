#pragma once
#include <nlohmann/json.hpp>

namespace verbena::tools {

// This host, for who reads a stored result later: name, system, CPU, memory.
nlohmann::json describe_machine();

// The variables of this process's environment that change what is measured: VERBENA_*, NCCL_*, SOFTVERBS_*,
// CUDA_*.
nlohmann::json list_measured_environment();

}  // namespace verbena::tools
