// Checks calls of CUDA's runtime, and throws Failure if a call has failed.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "verbena/verbena.hpp"

namespace verbena::backends {

inline void check_cuda(cudaError_t status, const char* call) {
  if (status != cudaSuccess)
    throw Failure(VERBENA_CUDA_ERROR, std::string(call) + ": " + cudaGetErrorString(status));
}

}  // namespace verbena::backends

#define CHECK_CUDA(call) ::verbena::backends::check_cuda(call, #call)
