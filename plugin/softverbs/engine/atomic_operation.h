// Compare-and-swap and fetch-and-add on words of a peer. If the word is in host memory, the operation is
// executed at once. If the word is in GPU memory, the owner of the memory executes the operation.
#pragma once

#include "softverbs/engine/operation.h"

namespace verbena::softverbs {

// A compare-and-swap or fetch-and-add on eight aligned bytes of the peer. The previous value is written to
// op.local, which is host memory. The operation is atomic with respect to all such operations on the peer's
// memory. The operation is not atomic with respect to atomics that a GPU or CPU executes on the same word;
// the effect of such an atomic may be lost.

// Executes the operation completely. All earlier requests must be complete.
StepOutcome execute_atomic(Operation& op);

// An operation on GPU memory takes two steps: the owner prepares the change, and executes the change once it
// has permission. begin_change() returns false while the owner has no space for another change.
bool begin_change(Operation& op);
enum class Permission { kGranted, kDenied };
// Call end_change() again until it returns true; op.outcome then has the result. A permission that was given
// cannot be withdrawn. `carried` is a write whose words are stored together with the change, or null.
bool end_change(Operation& op, Permission permission, const Operation* carried = nullptr);

}  // namespace verbena::softverbs
