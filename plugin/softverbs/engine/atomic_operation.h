// Compare-and-swap and fetch-and-add on words of a peer. In host memory they are executed at once; in GPU
// memory the owner executes them.
#pragma once

#include "softverbs/engine/operation.h"

namespace verbena::softverbs {

// A compare-and-swap or fetch-and-add on eight aligned bytes of the peer. The previous value is written to
// op.local, which is host memory. It is atomic among all such operations on the peer's memory, but not with
// atomics that a GPU or CPU executes on the same word, which may be lost.

// Executes the operation completely. All earlier requests must be complete.
StepOutcome execute_atomic(Operation& op);

// In GPU memory, in two steps: the owner prepares the change, and executes it once it has permission. Returns
// false while the owner has no space for another change.
bool begin_change(Operation& op);
enum class Permission { kGranted, kDenied };
// Call this again until it returns true; op.outcome then has the result. A permission that was given cannot
// be withdrawn. `carried` is a write whose words are stored together with the change, or null.
bool end_change(Operation& op, Permission permission, const Operation* carried = nullptr);

}  // namespace verbena::softverbs
