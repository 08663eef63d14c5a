// Compare-and-swap and fetch-and-add on words of a peer, in host memory at once, in GPU memory by its
// owner.
#pragma once

#include "softverbs/engine/operation.h"

namespace verbena::softverbs {

// A compare-and-swap or fetch-and-add on eight aligned bytes of the peer; the former value goes to op.local,
// which is host memory. Atomic among all such operations on the peer's memory, but not with atomics that a
// GPU or CPU executes on the same word: those may be lost.

// To the end. All earlier requests must be complete.
StepOutcome execute_atomic(Operation& op);

// In GPU memory, in two steps: its owner prepares the change, and makes it once it is granted. False while
// the owner has no room for another one.
bool begin_change(Operation& op);
enum class Permission { kGranted, kDenied };
// To be called again until it is true: op.outcome then says what came of it. What was granted once, is.
// `carried`: a write whose words are stored with the change, or null.
bool end_change(Operation& op, Permission permission, const Operation* carried = nullptr);

}  // namespace verbena::softverbs
