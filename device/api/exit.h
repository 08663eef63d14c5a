// Ends the threads of contexts that still exist when the process exits. The threads must end before CUDA's
// own exit handler runs, because that handler frees memory that these threads read.
#pragma once

struct verbena_context;

namespace verbena::api {

// Call note_created() after a context is complete, and note_destroyed() before it is destroyed. Any thread
// may call these functions.
void note_created(verbena_context& context);
void note_destroyed(verbena_context& context);

}  // namespace verbena::api
