// Functions that all calls for completion queues share: creating a queue, and taking the next completion.
#pragma once

#include "softverbs/engine/objects.h"

namespace verbena::softverbs {

struct CompletionQueueRequest {
  int entries;
  void* cq_context;
  ibv_comp_channel* channel;
  int vector;
};

Cq* create_completion_queue(ibv_context* context, const CompletionQueueRequest& request);

// Takes the next completion to report, if there is one. The caller holds the queue's poll_mutex.
bool take_completion(Cq& cq, Completion& completion);
// Lets the wire make progress, if there is one.
bool poll_wire(Cq& cq);
// Call this after a poll, without poll_mutex. This function may yield, because the peer may need this CPU to
// send the expected data.
void yield_if_idle(bool has_polled);

}  // namespace verbena::softverbs
