#pragma once
#include <cstdint>

#include "common/cuda_driver.h"
#include "nccl-perf/collective.h"

namespace verbena::tools::nccl {

// PTX of the two kernels, compiled by the driver; sm_75 and later.
extern const char kKernelText[];

// Fills and checks buffers where they are: the host would take longer than the collectives.
class Kernels {
 public:
  // Compiles them for the current context; throws with the compiler's log.
  explicit Kernels(const CudaDriver& driver);

  void fill(CudaAddress data, uint64_t count, uint32_t rank, uint32_t salt, CudaStream stream) const;
  // Adds the number of wrong elements to the 64-bit word at `wrong`.
  void check(CudaAddress data, const Expectation& expected, uint32_t salt, CudaAddress wrong,
             CudaStream stream) const;

 private:
  void launch(CudaFunction function, uint64_t count, void** parameters, CudaStream stream) const;

  const CudaDriver& driver_;
  CudaFunction fill_ = nullptr;
  CudaFunction check_ = nullptr;
};

}  // namespace verbena::tools::nccl
