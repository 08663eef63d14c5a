// Ends the threads of contexts that still exist when the process exits. It must happen before CUDA's own exit
// handler, which frees memory that these threads read.
#pragma once

struct verbena_context;

namespace verbena::api {

// Call note_created() after a context is complete, and note_destroyed() before it is destroyed. Any thread
// may call.
void note_created(verbena_context& context);
void note_destroyed(verbena_context& context);

}  // namespace verbena::api
