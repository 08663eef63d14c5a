// The common host code of the examples: chooses a GPU for this rank, and throws errors. Start one process per rank, with
// torchrun, mpirun or srun, or with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set by hand.
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

// Chooses by LOCAL_RANK, which launchers set, otherwise by RANK; ranks share GPUs if there are too few. False without a
// GPU.
inline bool choose_gpu() {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) return false;
  const char* rank = std::getenv("LOCAL_RANK") != nullptr ? std::getenv("LOCAL_RANK") : std::getenv("RANK");
  check(cudaSetDevice(rank == nullptr ? 0 : std::atoi(rank) % gpus));
  check(cudaFree(nullptr));  // the context that verbena uses becomes current
  return true;
}

// Runs `body(context)`, which returns true if the result is right. Returns the exit status for main().
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

// Reads a value from GPU memory.
template <typename T>
T read_back(const T* address) {
  T value{};
  check(cudaMemcpy(&value, address, sizeof(T), cudaMemcpyDefault));
  return value;
}

}  // namespace example
