// The kernels for every architecture of the build, embedded in the library: an image for each source of
// theirs, as nvcc makes them side by side.
#pragma once

namespace verbena::ops {

// The CUDA version of the compiler that built the kernels, such as "13.0.48": they need a driver of that
// version or newer.
const char* kernel_cuda_version();
// As cuModuleLoadDataEx() takes it.
const char* kernel_image();
const char* fused_kernel_image();
const char* moe_kernel_image();

}  // namespace verbena::ops
