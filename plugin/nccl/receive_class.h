// StateDump receives apart. NCCL's kernels unpack, and advance their head, for one kind of receive only:
// Simple protocol into NCCL's own buffer. Being wrong here puts a connection out of step for good, so every
// mark NCCL gives is used: its hint (tables 9..), the attributes (tables 11..), and the order of registration
// (always).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "nccl/abi.h"
#include "transport/receiver.h"

namespace verbena::nccl {

// What the progress thread said before it posted: the operation, its algorithm and protocol. Each is one bit.
struct DataAttributes {
  uint32_t operation = 0;  // 0: NCCL said nothing (tables up to 10)
  uint32_t algorithm = 0;
  uint32_t protocol = 0;
};

// Bits of the operations whose attributes name an algorithm and a protocol: Broadcast, Reduce, AllGather,
// ReduceScatter, AllReduce. A connection that may serve one of them has all three of NCCL's buffers.
inline constexpr uint32_t kClassicCollectives = 0x1F;

// LL or LL128, or a collective whose kernel never unpacks (PAT). Attributes of algorithm and protocol are
// stale for everything that is not one of the five classic collectives.
inline bool is_never_unpacked(const DataAttributes& attributes) {
  if ((attributes.operation & kClassicCollectives) == 0) return false;
  return (attributes.protocol & (abi::kProtoLl | abi::kProtoLl128)) != 0 ||
         (attributes.algorithm & abi::kAlgoPat) != 0;
}

// The memory that a connection registered, in order. NCCL registers its own buffers right after accept or
// connect: LL, LL128, Simple for collectives; Simple alone, or LL and Simple, for send/recv; whatever follows
// is the user's. add() may run beside find_simple().
class RegistrationOrder {
 public:
  enum class Family : uint8_t { kUnknown, kCollective, kPointToPoint };

  // The ordinal of the registration.
  uint32_t add(size_t length_bytes);
  // The ordinal of NCCL's Simple buffer; decided at the first call, which comes with the first message.
  // Without a family the length of NCCL's LL buffer (NCCL_LL_BUFFSIZE) tells.
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
