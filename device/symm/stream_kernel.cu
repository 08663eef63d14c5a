// This file is compiled to PTX, which the driver loads. It does not need CUDA's headers.
#include "device/symm/stream_kernel.cuh"

extern "C" __attribute__((global)) void verbena_stream_call(const verbena::SymmContext* context,
                                                            verbena::symm::StreamCall call) {
  verbena::symm::run_stream_call(*context, call);
}
