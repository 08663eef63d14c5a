#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace verbena::tools::nccl {

// A line for each thread of a process that hangs: its name, state and, where the kernel tells, what it waits
// in.
std::vector<std::string> describe_threads(pid_t pid);

}  // namespace verbena::tools::nccl
