#include "nccl/receive_class.h"

#include <algorithm>

#include "nccl/abi.h"

namespace verbena::nccl {

namespace {

// The shared send/recv buffer is a multiple of 16 slots x 128 KiB. NCCL's LL buffer is smaller, its LL128
// buffer (a multiple of 120 payload bytes in 128) is no multiple of it.
constexpr size_t kPointToPointUnitBytes = 16 * 131072;
constexpr uint32_t kClassicCollectives =
    5;  // ncclFunc_t below this: Broadcast, Reduce, AllGather, ReduceScatter, AllReduce

}  // namespace

bool is_never_unpacked(const DataAttributes& attributes) {
  if (attributes.operation == 0 || attributes.operation >= 1U << kClassicCollectives) return false;
  return (attributes.protocol & (abi::kProtoLl | abi::kProtoLl128)) != 0 ||
         (attributes.algorithm & abi::kAlgoPat) != 0;
}

uint32_t RegistrationOrder::add(size_t length_bytes) {
  const uint32_t ordinal = count_.load(std::memory_order_relaxed);
  if (ordinal < lengths_bytes_.size()) lengths_bytes_[ordinal].store(length_bytes, std::memory_order_relaxed);
  count_.store(ordinal + 1,
               std::memory_order_release);  // after the length: the data thread reads count first
  return ordinal;
}

uint32_t RegistrationOrder::find_simple(Family family) {
  if (!simple_) simple_ = decide(family);
  return *simple_;
}

uint32_t RegistrationOrder::decide(Family family) const {
  const uint32_t count = count_.load(std::memory_order_acquire);
  const bool starts_with_ll =
      count >= 2 && lengths_bytes_[0].load(std::memory_order_relaxed) < kPointToPointUnitBytes;
  switch (family) {
    case Family::kCollective:
      return std::min(2U, count - 1);
    case Family::kPointToPoint:
      return starts_with_ll ? 1 : 0;
    case Family::kUnknown:
      break;
  }
  if (!starts_with_ll) return 0;
  if (count == 2) return 1;
  return lengths_bytes_[1].load(std::memory_order_relaxed) % kPointToPointUnitBytes == 0 ? 1 : 2;
}

transport::ReceiveClass classify_receive(bool has_hint, const DataAttributes& attributes, uint32_t ordinal,
                                         uint32_t simple_ordinal) {
  if (has_hint || is_never_unpacked(attributes) || ordinal < simple_ordinal)
    return transport::ReceiveClass::kNoSlot;
  return ordinal == simple_ordinal ? transport::ReceiveClass::kUnpacked : transport::ReceiveClass::kSlotOnly;
}

}  // namespace verbena::nccl
