// The kernels for every GPU architecture of the build, embedded in the library. There is one image per source
// file, so that the source files can be compiled in parallel.
#pragma once

#include <cstdint>

namespace verbena::ops {

// The version of the CUDA compiler that built the kernels, such as "13.0.48". The kernels need a driver for
// that CUDA version or newer.
const char* kernel_cuda_version();
// The newest architecture for which the kernels were compiled, such as 90 for sm_90.
uint32_t kernel_architecture();
// Images for cuModuleLoadDataEx().
const char* kernel_image();
const char* fused_kernel_image();
const char* moe_kernel_image();

}  // namespace verbena::ops
