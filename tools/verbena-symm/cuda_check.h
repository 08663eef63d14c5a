// CUDA's runtime, with failures thrown.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace verbena::tools::symm {

inline void check_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

}  // namespace verbena::tools::symm

#define CHECK(call) ::verbena::tools::symm::check_cuda(call, #call)
