// Compiled to PTX without CUDA's headers, for the driver.
#include "device/symm/stream_kernel.cuh"

extern "C" __attribute__((global)) void verbena_stream_call(const verbena::SymmContext* context,
                                                            verbena::symm::StreamCall call) {
  verbena::symm::run_stream_call(*context, call);
}
