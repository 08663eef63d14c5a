// The kernels for every architecture of the build, embedded in the library: an image for each source of
// theirs, as nvcc makes them side by side.
#pragma once

namespace verbena::ops {

// As cuModuleLoadDataEx() takes it.
// Of the compiler that made them, as "13.0.48": they need this CUDA's driver, or a newer one.
const char* kernel_cuda_version();
const char* kernel_image();
const char* fused_kernel_image();
const char* moe_kernel_image();

}  // namespace verbena::ops
