// The words that both ends of a connection use for their state, and how a core is looked at while another
// thread is at work on it.
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

// As %llu takes it.
inline unsigned long long as_ull(uint64_t value) {
  return value;
}

// A core as it is, or torn: for people only. Only what does not ask the port may be called of it.
template <typename Core>
class OutsideCopy {
 public:
  explicit OutsideCopy(const Core& core) : is_seen_(base::look_from_outside(core, **this)) {}

  // False: this system does not allow it.
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

// The numbers, each message that is open, what was done.
std::string describe_messages(const Sender::Core& core);
std::string describe_messages(const Receiver::Core& core);
// What an open message waits for.
std::string explain_wait(const Sender::Core& core, const SendMessage& message);
const char* explain_wait(const Receiver::Core& core, const ReceiveMessage& message);

// `live`, `down for 1.2 s, generation 2`.
std::string describe_life(const protocol::QueuePairStates& lives, uint32_t queue_pair);
// ` for 3.1 s`, or nothing if it is not known since when.
std::string describe_since(int64_t since_ns);

}  // namespace verbena::transport
