#pragma once

#include <functional>

#include "softverbs/operation.h"

namespace verbena::softverbs {

// How to get at a word of GPU memory: *value from there, or to there.
struct GpuWord {
  std::function<Outcome(uint64_t* value)> load, store;
};
// Of op.remote through staging memory. Workers only.
GpuWord stage_word(const Operation& op);

// A compare-and-swap or fetch-and-add on eight aligned bytes of the peer; the value before goes to op.local,
// which is host memory. Atomic among all such operations on the peer's memory; a GPU's or a CPU's own atomics
// on the same word may be lost in between.
Outcome execute_atomic(Operation& op, const GpuWord& gpu_word);

}  // namespace verbena::softverbs
