// What the examples have in common on the host: a GPU for this rank, and errors as exceptions. Start one process a rank,
// with torchrun, mpirun, srun, or RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set by hand.
#pragma once

#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <vector>

#include "verbena/verbena.hpp"

namespace example {

constexpr int kOk = 0, kFailed = 1, kNoGpu = 77;

inline void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

// By LOCAL_RANK, which launchers set, else by RANK; ranks share GPUs if there are too few. False: there is none.
inline bool choose_gpu() {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) return false;
  const char* rank = std::getenv("LOCAL_RANK") != nullptr ? std::getenv("LOCAL_RANK") : std::getenv("RANK");
  check(cudaSetDevice(rank == nullptr ? 0 : std::atoi(rank) % gpus));
  check(cudaFree(nullptr));  // the context that verbena uses becomes current
  return true;
}

// Runs `body(context)`, which says whether all is right; what main() returns.
template <typename Body>
int run(const char* name, const Body& body) {
  try {
    if (!choose_gpu()) {
      std::printf("%s: no GPU\n", name);
      return kNoGpu;
    }
    auto context = verbena::SymmetricContext::from_environment();
    const bool is_right = body(context);
    std::printf("%s: rank %u of %u: %s\n", name, context.rank(), context.size(), is_right ? "ok" : "WRONG");
    return is_right ? kOk : kFailed;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return kFailed;
  }
}

// A value of the GPU's memory.
template <typename T>
T read_back(const T* address) {
  T value{};
  check(cudaMemcpy(&value, address, sizeof(T), cudaMemcpyDefault));
  return value;
}

}  // namespace example
