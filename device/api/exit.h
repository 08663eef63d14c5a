// Contexts that live on when the process exits. CUDA's own exit handler frees the memory that their threads
// look at, so those threads end before it.
#pragma once

struct verbena_context;

namespace verbena::api {

// From any thread. To be told of once the context stands, and before it goes.
void note_created(verbena_context& context);
void note_destroyed(verbena_context& context);

}  // namespace verbena::api
