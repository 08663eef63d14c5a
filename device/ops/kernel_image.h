// The kernels for every architecture of the build, embedded in the library.
#pragma once

namespace verbena::ops {

// As cuModuleLoadDataEx() takes it.
const char* kernel_image();

}  // namespace verbena::ops
