// The kernels that the stand-in for CUDA's driver (fake_gpu.cc) launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace verbena {

struct GridShape {
  unsigned blocks, threads, cluster = 1;
};
struct Kernel {
  size_t launch_bytes;  // of its parameter
  void (*run)(uint32_t gpu, const GridShape& grid, const void* launch);
};

// The process's own; nullptr where there is no such kernel.
const Kernel* find_kernel(const std::string& name);

}  // namespace verbena
