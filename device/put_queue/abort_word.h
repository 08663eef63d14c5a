// The word by which the host aborts all waits of a context's kernels on this rank. The first reason written
// stays.
#pragma once

#include <cstdint>

#include "base/cuda_driver.h"
#include "base/status.h"
#include "verbena/symm_abi.h"

namespace verbena::symm {

// The object is movable. Any thread may call its functions.
class AbortWord {
 public:
  // Creates the word in host memory that is pinned for the calling thread's current GPU.
  static base::Result<AbortWord> create();

  // The word's address for kernels (SymmContext::abort_word).
  const uint32_t* device() const { return static_cast<const uint32_t*>(memory_.device()); }
  SymmAbort value() const;
  // Writes a reason other than kNone, unless a reason was already written. Returns whether this reason was
  // the first.
  bool raise(SymmAbort reason);

 private:
  uint32_t* word() const { return static_cast<uint32_t*>(memory_.host()); }

  base::Buffer memory_;
};

}  // namespace verbena::symm
