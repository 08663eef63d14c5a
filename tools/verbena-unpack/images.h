#pragma once
#include <string_view>

namespace verbena::tools::unpack {

// Files that are part of the program: our kernels for every architecture built for, and what the kernel
// around NCCL's code is compiled from.
std::string_view kernel_image();
std::string_view nccl_kernel_text();
std::string_view unpack_run_text();

}  // namespace verbena::tools::unpack
