// The words that both ends of a connection use for their state.
#pragma once

#include <string>

#include "protocol/recovery.h"
#include "transport/statistics.h"

namespace verbena::transport {

// What every block begins with: who, whose, how old, what stands in the way of the rest.
struct BlockHead {
  std::string who;  // `send to <peer>`
  uint64_t communicator_id = 0;
  int64_t opened_at_ns = 0;
  int64_t waiting_since_ns = 0;  // 0: it is not known to wait
  uint32_t open = 0;             // requests
  bool has_failed = false;
  bool is_peer_closed = false;
  bool is_seen_from_outside = false;
};
std::string describe_head(const BlockHead& head);

// `live`, `down for 1.2 s, generation 2`.
std::string describe_life(const protocol::QueuePairLives& lives, uint32_t queue_pair);
// ` for 3.1 s`, or nothing if it is not known since when.
std::string describe_since(int64_t since_ns);

}  // namespace verbena::transport
