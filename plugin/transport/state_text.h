// The texts with which both ends of a connection describe their state, and a way to read the state of a core
// while another thread uses the core.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <type_traits>

#include "base/outside_view.h"
#include "protocol/recovery.h"
#include "transport/receiver.h"
#include "transport/sender.h"

namespace verbena::transport {

// Converts to the type of %llu.
inline unsigned long long as_ull(uint64_t value) {
  return value;
}

// A copy of a core, which may be inconsistent because another thread may be changing the core. Use it for
// diagnosis only. Only functions that do not use the port may be called.
template <typename Core>
class OutsideCopy {
 public:
  explicit OutsideCopy(const Core& core) : is_seen_(base::look_from_outside(core, **this)) {}

  // False if this system does not allow the copy.
  explicit operator bool() const { return is_seen_; }
  const Core& operator*() const { return reinterpret_cast<const Core&>(*storage_); }

 private:
  static_assert(std::is_trivially_copyable_v<Core>);
  struct Storage {
    alignas(Core) std::byte bytes[sizeof(Core)];
  };
  Core& operator*() { return reinterpret_cast<Core&>(*storage_); }

  std::unique_ptr<Storage> storage_ = std::make_unique<Storage>();
  bool is_seen_;
};

// The first line of each block: which connection, of which communicator, how long it has been open, and its
// problems.
struct BlockHead {
  std::string who;  // `send to <peer>`
  uint64_t communicator_id = 0;
  int64_t opened_at_ns = 0;
  int64_t waiting_since_ns = 0;  // 0 if it is not known to wait
  uint32_t open = 0;             // number of open requests
  bool has_failed = false;
  bool is_peer_closed = false;
  bool is_seen_from_outside = false;
};
std::string describe_head(const BlockHead& head);

// Describes the sequence numbers, each open message and the counters.
std::string describe_messages(const Sender::Core& core);
std::string describe_messages(const Receiver::Core& core);
// Says what an open message waits for.
std::string explain_wait(const Sender::Core& core, const SendMessage& message);
const char* explain_wait(const Receiver::Core& core, const ReceiveMessage& message);

// Returns text such as `live` or `down for 1.2 s, generation 2`.
std::string describe_life(const protocol::QueuePairStates& lives, uint32_t queue_pair);
// Returns text such as ` for 3.1 s`, or an empty string if the beginning is not known.
std::string describe_since(int64_t since_ns);

}  // namespace verbena::transport
