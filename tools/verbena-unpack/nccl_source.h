#pragma once
#include <string>

namespace verbena::tools::unpack {

// Compiles NCCL's unpacking, out of a checkout of NCCL, into our kernel around it. Returns the image for the
// driver. Throws ToolError where the checkout, a compiler or the compilation fails, with the compiler's
// words.
std::string compile_nccl_kernel(const std::string& checkout, int compute_major, int compute_minor);

// nvcc of CUDA_HOME, or of the PATH; empty where there is none.
std::string find_nvcc();

}  // namespace verbena::tools::unpack
