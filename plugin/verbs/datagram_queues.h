// Unreliable datagrams: queue pairs that can send to any peer (address_handles.h), and receives whose first
// bytes are written to a line of host memory and the rest to a page. Objects are movable, not copyable, and
// must be destroyed before the Device on which they were created.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "verbs/queues.h"

struct ibv_ah;

namespace verbena::verbs {

inline constexpr uint32_t kGrhBytes = 40;  // that a device writes in front of every datagram, on Ethernet too

// Returns whether a switch has marked a datagram on Ethernet because of congestion (ECN: congestion
// experienced). The device writes the network header in front of the datagram: an IPv6 header, or an IPv4
// header in the last 20 bytes.
bool has_congestion_mark(const std::byte* network_header);

// One datagram: a header, followed by data. Lengths are in bytes.
struct Datagram {
  ibv_ah* way = nullptr;
  uint32_t pair_number = 0, key = 0;  // of the peer's queue pair
  uint32_t imm = 0;                   // host byte order
  bool send_inline = false;  // only if header_length <= DatagramPair::inline_bytes() and there is no data
  uint32_t header_length = 0, data_length = 0;
  const void* header = nullptr;
  const void* data = nullptr;
  uint32_t header_key = 0, data_key = 0;
};

struct DatagramPairOptions {
  uint32_t send_depth = 128;
  uint32_t inline_bytes = 0;  // maximum; a device may grant less
  uint32_t key = 0;           // the key that peers must use (Q_Key); its top bit is 0
  uint16_t mark = 0;          // part of the cookie of each send: see mark_of()
  uint32_t bond_turn = 0;     // queue pairs with consecutive numbers use different ports of a bond
};

// One thread at a time uses it.
class DatagramPair {
 public:
  // The queue pair is ready to send and to receive.
  static base::Result<DatagramPair> create(Device& device, CompletionQueue& sends, CompletionQueue& receives,
                                           SharedReceiveQueue& receive_queue,
                                           const DatagramPairOptions& options);
  DatagramPair() = default;

  uint32_t number() const { return number_; }
  uint32_t inline_bytes() const { return inline_bytes_; }
  uint32_t free_slots() const { return send_depth_ - (posted_ - retired_); }
  // Posts datagrams in order; free_slots() must be large enough. Only the last datagram of a call is
  // signaled. Its completion, with its cookie, covers all earlier datagrams.
  base::Outcome post(std::span<const Datagram> datagrams);
  // Returns the mark of the queue pair to which a send completion belongs.
  static uint16_t mark_of(uint64_t cookie) { return static_cast<uint16_t>(cookie >> 32); }
  // Call this for each send completion of this queue pair, also for failed ones.
  void retire(uint64_t cookie) { retired_ = static_cast<uint32_t>(cookie); }

  // Returns whether the queue pair is ready to send and receive. Queries the device.
  bool is_ready() const;
  // Moves the queue pair to the error state. Outstanding datagrams complete soon, and then no longer read
  // memory.
  base::Outcome stop();
  // Makes the queue pair ready again. It keeps its number, so peers need not be notified. `posted` is the
  // total number of datagrams posted so far. All of them have completed or will never complete.
  base::Outcome restart(uint32_t posted);
  // Destroys the queue pair. The device no longer reads memory for it, whatever it had begun.
  void destroy() { pair_.reset(); }
  explicit operator bool() const { return pair_ != nullptr; }

 private:
  struct Attributes;
  base::Outcome enter(const Attributes& state) const;
  base::Outcome start() const;

  Owned<ibv_qp> pair_;
  Device* device_ = nullptr;
  uint32_t key_ = 0;
  uint32_t number_ = 0, send_depth_ = 0, inline_bytes_ = 0;
  uint32_t bonded_port_ = 0;           // from 1; 0 if the device is not a bond
  uint32_t posted_ = 0, retired_ = 0;  // counters, wrapping
  uint64_t mark_ = 0;
};

// A receive in up to three buffers. A buffer of length 0 is omitted.
struct SplitReceive {
  ReceiveBuffer line, page = {}, rest = {};  // only the line's cookie is used
};
base::Outcome post_split(SharedReceiveQueue& queue, std::span<const SplitReceive> receives);

}  // namespace verbena::verbs
