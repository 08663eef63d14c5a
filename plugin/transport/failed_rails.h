// What an end of a connection knows of its failed queue pairs: why they failed, in words, and which of them
// are to be given up though no completion says so. For whoever has the turn (progress_token.h); slow paths.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "protocol/recovery.h"
#include "transport/link/link.h"

namespace verbena::transport {

class FailedRails {
 public:
  // `direction`: "send to" or "receive from". All of it outlives this.
  FailedRails(const char* direction, const std::string& peer, Link& link,
              const protocol::QueuePairStates& lives)
      : direction_(direction), peer_(peer), link_(link), lives_(lives) {}

  void note(uint32_t queue_pair, std::string cause) { causes_[queue_pair] = std::move(cause); }
  // Of all queue pairs that do not live.
  std::string describe() const;
  void log_loss(uint32_t queue_pair) const;
  // Why it failed last; empty: it never did.
  const std::string& cause(uint32_t queue_pair) const { return causes_[queue_pair]; }

  // `, failed last because: <cause>` or nothing, and the end of the line.
  std::string describe_last(uint32_t queue_pair) const;

  // In a wait that has lasted for `waited_ns`: why a queue pair that lives is to be given up; empty: it is
  // not. A port that is known to be down is not waited for while there are others, and no longer than its
  // device may take to say so: one that was set down under its requests may never say it.
  std::string find_dying(uint32_t queue_pair, int64_t waited_ns);

 private:
  bool is_any_healthy() const;

  const char* direction_;
  const std::string& peer_;
  Link& link_;
  const protocol::QueuePairStates& lives_;
  std::array<std::string, protocol::kMaxQueuePairs> causes_;
  std::array<int64_t, protocol::kMaxQueuePairs> down_since_ns_{};  // as far as waits have seen; 0: it is up
};

}  // namespace verbena::transport
