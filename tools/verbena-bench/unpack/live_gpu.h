#pragma once
#include "verbena-bench/unpack/kernel_set.h"
#include "verbena-bench/unpack/live.h"

namespace verbena::tools::unpack {

// Receives into GPU memory, which is freed with the process; launches one kernel per message.
class GpuReceiver final : public LiveReceiver {
 public:
  GpuReceiver(Gpu& gpu, KernelSet& kernels, uint32_t threads, double timeout_s);

  int pointer_type() const override { return abi::kPtrCuda; }
  char* allocate(size_t length_bytes) override;
  void reset(const UnpackRun& run) override;
  uint64_t place(UnpackDeviceHandle* handle, char* data, uint64_t length_bytes) override;
  Finding check(const UnpackRun& run) override;

 private:
  Gpu& gpu_;
  KernelSet& kernels_;
  uint32_t threads_;
  double timeout_s_;
  Workspace workspace_;
  CUdeviceptr placed_;
};

}  // namespace verbena::tools::unpack
