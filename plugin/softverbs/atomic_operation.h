#pragma once

#include <functional>

#include "softverbs/operation.h"

namespace verbena::softverbs {

// Loads a word of GPU memory into *value, or stores *value there.
struct GpuWord {
  std::function<Outcome(uint64_t* value)> load, store;
};
// Accesses the word of op.remote through staging memory; `once_loading` is called when the load is on its
// way. For worker threads only.
GpuWord stage_word(const Operation& op, const std::function<void()>& once_loading);

// A compare-and-swap or fetch-and-add on eight aligned bytes of the peer; the former value goes to op.local,
// which is host memory. Atomic among all such operations on the peer's memory, but not with atomics that a
// GPU or CPU executes on the same word: those may be lost. `is_due` is asked once the word is loaded and
// returns when it may be stored, or false: then nothing has happened, and the outcome says nothing.
Outcome execute_atomic(Operation& op, const GpuWord& gpu_word, const std::function<bool()>& is_due);

}  // namespace verbena::softverbs
