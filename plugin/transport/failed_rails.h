// The failed queue pairs of one end of a connection: why each one failed, in words, and which ones must be
// given up although no completion has reported a failure. Used on slow paths, by the thread that holds the
// progress token (progress_token.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "protocol/recovery.h"
#include "transport/link/link.h"

namespace verbena::transport {

class FailedRails {
 public:
  // `direction` is "send to" or "receive from". All arguments must outlive this object.
  FailedRails(const char* direction, const std::string& peer, Link& link,
              const protocol::QueuePairStates& lives)
      : direction_(direction), peer_(peer), link_(link), lives_(lives) {}

  void note(uint32_t queue_pair, std::string cause) { causes_[queue_pair] = std::move(cause); }
  // Describes all queue pairs that are not live.
  std::string describe() const;
  void log_loss(uint32_t queue_pair) const;
  // Returns why the queue pair failed last, or an empty string if it never failed.
  const std::string& cause(uint32_t queue_pair) const { return causes_[queue_pair]; }

  // Returns `, failed last because: <cause>` if there is a cause, and the end of the line.
  std::string describe_last(uint32_t queue_pair) const;

  // Call this during a wait that has lasted for `waited_ns`. Returns why a live queue pair must be given up,
  // or an empty string if it need not be. If the port of a queue pair is down and other queue pairs are left,
  // the queue pair is given up at once. If no other is left, it is given up when its device should have
  // reported failed requests; a port that was set down with requests in flight may never report them. A queue
  // pair is also given up if its rail has lost its address.
  std::string find_dying(uint32_t queue_pair, int64_t waited_ns);

 private:
  bool is_any_healthy() const;

  const char* direction_;
  const std::string& peer_;
  Link& link_;
  const protocol::QueuePairStates& lives_;
  std::array<std::string, protocol::kMaxQueuePairs> causes_;
  // When a wait first saw the port down; 0 if the port is up.
  std::array<int64_t, protocol::kMaxQueuePairs> down_since_ns_{};
};

}  // namespace verbena::transport
