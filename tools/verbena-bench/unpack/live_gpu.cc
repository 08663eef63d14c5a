#include "verbena-bench/unpack/live_gpu.h"

#include "common/error.h"

namespace verbena::tools::unpack {

GpuReceiver::GpuReceiver(Gpu& gpu, KernelSet& kernels, uint32_t threads, double timeout_s)
    : gpu_(gpu),
      kernels_(kernels),
      threads_(threads),
      timeout_s_(timeout_s),
      workspace_(gpu, kernels, timeout_s),
      placed_(gpu.allocate(sizeof(uint64_t))) {}

char* GpuReceiver::allocate(size_t length_bytes) {
  return reinterpret_cast<char*>(gpu_.allocate(length_bytes));
}

void GpuReceiver::reset(const UnpackRun& run) {
  workspace_.reset_buffers(run);
}

uint64_t GpuReceiver::place(UnpackDeviceHandle* handle, char* data, uint64_t) {
  uint64_t placed = 0;
  kernels_.launch_receive(reinterpret_cast<CUdeviceptr>(handle), reinterpret_cast<CUdeviceptr>(data), placed_,
                          threads_);
  gpu_.read(&placed, placed_, sizeof placed, timeout_s_);
  if (placed == ~uint64_t{0}) throw ToolError("the plugin published more descriptors than fit into a slot");
  return placed;
}

Finding GpuReceiver::check(const UnpackRun& run) {
  return workspace_.check(run);
}

}  // namespace verbena::tools::unpack
