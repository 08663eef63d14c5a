// Classifies receives. NCCL's kernels unpack, and advance their head, only for receives of the Simple
// protocol into NCCL's own buffer. A wrong classification would put a connection out of step forever, so all
// information is used: NCCL's hint (tables from 9 on), the attributes (tables from 11 on), and the order of
// registration (always).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "nccl/abi.h"
#include "transport/receiver.h"

namespace verbena::nccl {

// The operation, algorithm and protocol that the progress thread announced before posting. Each is one bit.
struct DataAttributes {
  uint32_t operation = 0;  // 0: not announced (tables up to 10)
  uint32_t algorithm = 0;
  uint32_t protocol = 0;
};

// Bits of the operations whose attributes name an algorithm and a protocol: Broadcast, Reduce, AllGather,
// ReduceScatter, AllReduce. A connection that may serve one of them has all three of NCCL's buffers.
inline constexpr uint32_t kClassicCollectives = 0x1F;

// Returns true for LL, LL128 and PAT, whose kernels never unpack. For other operations than the five classic
// collectives, algorithm and protocol are stale and are ignored.
inline bool is_never_unpacked(const DataAttributes& attributes) {
  if ((attributes.operation & kClassicCollectives) == 0) return false;
  return (attributes.protocol & (abi::kProtoLl | abi::kProtoLl128)) != 0 ||
         (attributes.algorithm & abi::kAlgoPat) != 0;
}

// The order in which a connection registered memory. Right after accept or connect, NCCL registers its own
// buffers: LL, LL128 and Simple for collectives; Simple, or LL and Simple, for send/recv. All later
// registrations are the user's. add() and find_simple() may run at the same time.
class RegistrationOrder {
 public:
  enum class Family : uint8_t { kUnknown, kCollective, kPointToPoint };

  // Records a registration, and returns its ordinal.
  uint32_t add(size_t length_bytes);
  // Returns the ordinal of NCCL's Simple buffer. The first call, at the first message, determines it. If the
  // family is unknown, the length of NCCL's LL buffer (NCCL_LL_BUFFSIZE) decides.
  uint32_t find_simple(Family family) {
    if (!is_decided_) [[unlikely]]
      decide(family);
    return simple_;
  }

 private:
  void decide(Family family);
  uint32_t choose(Family family) const;

  std::array<std::atomic<size_t>, 3> lengths_bytes_{};
  std::atomic<uint32_t> count_{0};
  uint32_t simple_ = 0;  // this and the next: data thread only
  bool is_decided_ = false;
};

inline transport::ReceiveClass classify_receive(bool has_hint, const DataAttributes& attributes,
                                                uint32_t ordinal, uint32_t simple_ordinal) {
  if (has_hint || is_never_unpacked(attributes) || ordinal < simple_ordinal)
    return transport::ReceiveClass::kNoSlot;
  return ordinal == simple_ordinal ? transport::ReceiveClass::kUnpacked : transport::ReceiveClass::kSlotOnly;
}

}  // namespace verbena::nccl
