// What a kernel that has ended left in a rank's put queues: descriptors that the test writes itself. Host
// memory alone; one object a context, as it counts positions.
#pragma once

#include <array>
#include <cstdint>

#include "verbena/symm_abi.h"

namespace verbena::symm {

class Asker {
 public:
  explicit Asker(const SymmContext& context) : context_(context), queues_(context.queues) {}

  // To the same place of the peer's heap, of the world's ranks.
  void put(uint32_t queue, uint32_t peer, const void* address, uint64_t length_bytes) {
    write(queue, PutOperation::kPut, peer, offset_of(address), length_bytes, offset_of(address));
  }
  void add(uint32_t queue, uint32_t peer, const uint64_t* word, uint64_t value) {
    write(queue, PutOperation::kAddWord, peer, value, 0, offset_of(word));
  }
  uint64_t asked(uint32_t queue) const { return next_[queue]; }
  uint64_t completed(uint32_t queue) const {
    return __atomic_load_n(&queues_.progress[queue].completed, __ATOMIC_ACQUIRE);
  }
  uint64_t depth() const { return uint64_t{1} << queues_.depth_shift; }

 private:
  uint64_t offset_of(const void* address) const {
    return reinterpret_cast<uint64_t>(address) - context_.heap_begin;
  }
  void write(uint32_t queue, PutOperation operation, uint64_t peer, uint64_t operand, uint64_t extent,
             uint64_t place) {
    const uint64_t position = next_[queue]++;
    PutDescriptor& slot = queues_.ring[queue * depth() + position % depth()];
    const uint64_t turn = ((position >> queues_.depth_shift) + 1) << kPutTurnShift;
    slot.operand = operand;
    slot.extent = extent;
    __atomic_store_n(&slot.place, turn | place, __ATOMIC_RELEASE);
    __atomic_store_n(&slot.action,
                     turn | uint64_t{static_cast<uint8_t>(operation)} << kPutOperationShift | peer,
                     __ATOMIC_RELEASE);
  }

  const SymmContext context_;
  const PutQueueView queues_;
  std::array<uint64_t, kPutMaxQueues> next_{};
};

}  // namespace verbena::symm
