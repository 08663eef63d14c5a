// Delivers completions and asynchronous events to any process of the job: through the rings of its segment,
// and through pipes that its application can wait for.
#pragma once

#include <infiniband/verbs.h>

#include "softverbs/engine/process.h"
#include "softverbs/shared/completion_ring.h"

namespace verbena::softverbs {

// A record in a context's async pipe.
struct AsyncRecord {
  uint64_t token;  // token of the object, or the port number
  uint32_t type;   // enum ibv_event_type
  uint32_t padding;
};

// Writes to a pipe of `peer`, which may be this process. Never blocks. If the pipe is full or gone, the event
// is lost.
void write_event(PeerProcess& peer, const SharedPipe& pipe, const void* record, size_t bytes);

void raise_async(PeerProcess& peer, uint32_t context, uint64_t token, ibv_event_type type);

// Adds a completion to a queue of `peer`, with a time stamp if the queue has time stamps. Wakes the owner if
// the queue is armed.
void complete(PeerProcess& peer, uint32_t cq_index, Completion& completion, bool is_solicited,
              Order order = Order::kInQueue);

// Creates a pipe whose read end the application gets. Returns false, with errno, on failure.
bool open_event_pipe(SharedPipe& shared, int& read_fd);
void close_event_pipe(SharedPipe& shared, int read_fd);

// Events name objects by tokens, which are never used twice: an event that arrives after its object was
// destroyed finds nothing. The table also counts the events that the application got. Destroying an object
// waits until the application has acknowledged all events of the object.
class EventTable {
 public:
  struct Delivered {
    uint32_t completion = 0;
    uint32_t async = 0;
  };
  uint64_t add(void* object);
  void* deliver(uint64_t token, uint32_t Delivered::*kind);  // nullptr if the object was destroyed
  Delivered remove(uint64_t token);

 private:
  struct Object {
    void* object;
    Delivered delivered;
  };
  std::mutex mutex_;
  std::map<uint64_t, Object> objects_;
  uint64_t last_token_ = uint64_t{1} << 32;  // above every port number
};

EventTable& get_event_table();

}  // namespace verbena::softverbs
