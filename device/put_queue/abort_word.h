// The word by which the host ends all waits of a context's kernels on this rank. Its first value stays.
#pragma once

#include <cstdint>

#include "base/cuda_driver.h"
#include "base/status.h"
#include "verbena/symm_abi.h"

namespace verbena::symm {

// Movable. Calls from any thread.
class AbortWord {
 public:
  // Pinned for the calling thread's current GPU.
  static base::Result<AbortWord> create();

  // For SymmContext::abort_word.
  const uint32_t* device() const { return static_cast<const uint32_t*>(memory_.device()); }
  SymmAbort value() const;
  // Whether it was the first; `reason` is not kNone.
  bool raise(SymmAbort reason);

 private:
  uint32_t* word() const { return static_cast<uint32_t*>(memory_.host()); }

  base::Buffer memory_;
};

}  // namespace verbena::symm
