// Unreliable datagrams: queue pairs that reach any peer, the handles of the ways to peers, and receives whose
// first bytes land in a line of host memory and the rest in a page. Movable, not copyable; each object must
// be destroyed before the Device it was made on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "verbs/queues.h"

struct ibv_ah;

namespace verbena::verbs {

inline constexpr uint32_t kGrhBytes = 40;  // that a device puts in front of every datagram, on Ethernet too

// Whether a switch has marked a datagram on Ethernet because its queue was long (ECN: congestion
// experienced): so says the network's header, IPv6's or in the last 20 bytes IPv4's, which the device puts in
// front of it.
bool has_congestion_mark(const std::byte* network_header);

// A way to a peer's port.
class AddressHandle {
 public:
  // `flow_label`: see make_address_vector(). The ports can be joined (route.h); an error that is not logged
  // says that the peer's address does not answer yet (errno ETIMEDOUT).
  static base::Result<AddressHandle> create(Device& device, const LocalAddress& local,
                                            const PortAddress& remote, int traffic_class,
                                            uint32_t flow_label);
  AddressHandle() = default;

  ibv_ah* get() const { return handle_.get(); }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  Owned<ibv_ah> handle_;
};

// One datagram: a header, and data behind it. Units: bytes.
struct Datagram {
  ibv_ah* way = nullptr;
  uint32_t pair_number = 0, key = 0;  // of the peer's queue pair
  uint32_t imm = 0;                   // host byte order
  bool send_inline = false;           // header_length <= DatagramPair::inline_bytes(), and no data
  uint32_t header_length = 0, data_length = 0;
  const void* header = nullptr;
  const void* data = nullptr;
  uint32_t header_key = 0, data_key = 0;
};

struct DatagramPairOptions {
  uint32_t send_depth = 128;
  uint32_t inline_bytes = 0;  // at most that; a device may grant less
  uint32_t key = 0;           // that peers have to name (Q_Key); the top bit clear
  uint16_t mark = 0;          // comes back with what it sent: mark_of()
};

// One thread at a time.
class DatagramPair {
 public:
  // Ready to send and to receive.
  static base::Result<DatagramPair> create(Device& device, CompletionQueue& sends, CompletionQueue& receives,
                                           SharedReceiveQueue& receive_queue,
                                           const DatagramPairOptions& options);
  DatagramPair() = default;

  uint32_t number() const { return number_; }
  uint32_t inline_bytes() const { return inline_bytes_; }
  uint32_t free_slots() const { return send_depth_ - (posted_ - retired_); }
  // In order; they fit free_slots(). The last of a call completes with a cookie, and with it all before.
  base::Outcome post(std::span<const Datagram> datagrams);
  // Of a send's completion: which pair's it is.
  static uint16_t mark_of(uint64_t cookie) { return static_cast<uint16_t>(cookie >> 32); }
  // With each of this pair's send completions, failed ones too.
  void retire(uint64_t cookie) { retired_ = static_cast<uint32_t>(cookie); }

  // Whether it sends and receives. Asks the device.
  bool is_ready() const;
  // To the error state: what is posted completes soon, and nothing of it reads memory any more then.
  base::Outcome stop();
  // Ready again, under its old number: peers need not know. `posted`: how many were ever posted, or were to
  // be; all of them have completed, or never will.
  base::Outcome restart(uint32_t posted);
  // The device reads nothing for it any more, whatever it had begun.
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
  uint32_t posted_ = 0, retired_ = 0;  // counts, wrapping
  uint64_t mark_ = 0;
};

// A receive in up to three pieces; what has no length is left out.
struct SplitReceive {
  ReceiveBuffer line, page = {}, rest = {};  // the line's cookie counts
};
base::Outcome post_split(SharedReceiveQueue& queue, std::span<const SplitReceive> receives);

}  // namespace verbena::verbs
