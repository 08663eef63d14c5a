// A queue pair for datagrams that is no engine's, on the first rail: sends what a test makes up, hears
// nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "transport/link/nic.h"
#include "transport/support/connection.h"
#include "verbs/address_handles.h"
#include "verbs/datagram_queues.h"
#include "verbs/device.h"
#include "verbs/queues.h"

namespace verbena::transport {

class DatagramStranger {
 public:
  // `depth`: datagrams at a time. `bytes`: of memory(), from which they are sent.
  DatagramStranger(const Nic& nic, uint32_t depth, size_t bytes) : depth_(depth), memory_(bytes) {
    verbs::Device& device = *nic.rails[0];
    sends_ = take(verbs::CompletionQueue::create(device, depth), "a queue");
    receives_ = take(verbs::CompletionQueue::create(device, 16), "a queue");
    none_ = take(verbs::SharedReceiveQueue::create(device, 16), "a queue");  // stays empty: answers are lost
    pair_ =
        take(verbs::DatagramPair::create(device, sends_, receives_, none_, {.send_depth = depth}), "a pair");
    way_ = take(device.address_handles().take(device.local_address(), device.address(), -1, 1,
                                              verbs::AddressHandles::Purpose::kPeer),
                "a way");
    region_ =
        take(verbs::MemoryRegion::register_memory(device, memory_.data(), memory_.size(), {}), "a region");
  }

  uint32_t number() const { return pair_.number(); }
  std::vector<uint8_t>& memory() { return memory_; }
  // To a queue pair of the same rail, from `offset` of the memory.
  verbs::Datagram make(uint32_t pair_number, uint32_t key, uint32_t imm, size_t offset, uint32_t bytes) {
    return {.way = way_.get(),
            .pair_number = pair_number,
            .key = key,
            .imm = imm,
            .header_length = bytes,
            .header = memory_.data() + offset,
            .header_key = region_.local_key()};
  }
  // Returns when all have left; false: they did not.
  bool send(std::span<const verbs::Datagram> datagrams) {
    return pair_.post(datagrams) && poll_until([&] {
             verbs::Completion completions[verbs::CompletionQueue::kMaxPollEntries];
             for (int i = 0, count = sends_.poll(completions); i < count; ++i)
               pair_.retire(completions[i].cookie);
             return pair_.free_slots() == depth_;
           });
  }

 private:
  const uint32_t depth_;
  verbs::CompletionQueue sends_, receives_;
  verbs::SharedReceiveQueue none_;
  verbs::AddressHandle way_;
  verbs::DatagramPair pair_;
  std::vector<uint8_t> memory_;
  verbs::MemoryRegion region_;
};

}  // namespace verbena::transport
