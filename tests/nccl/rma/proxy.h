// NCCL's proxy of its device API, acted: rings of descriptors for each context and peer, which a "kernel"
// fills and whose order, batches and hints are NCCL's. It calls the table as NCCL's thread does, and never
// otherwise.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "common/rma_plugin.h"

namespace verbena::nccl::testing {

// What a kernel asks for.
struct Descriptor {
  enum class Kind : uint8_t {
    kPut,            // and no signal
    kPutSignal,      // in one call
    kPutThenSignal,  // two calls: the signal is a word of the user's own window
    kGet,
    kFlush,  // of the gets before it
  };
  Kind kind = Kind::kPut;
  tools::RmaCopy copy{};
  tools::RmaAdd add{};
};

class GinProxy {
 public:
  static constexpr uint32_t kReceives = 8;            // what the table says of itself
  static constexpr uint32_t kDepth = 32 * kReceives;  // most descriptors of one ring
  static constexpr uint32_t kBatch = 32;              // most that a tick takes of one ring

  GinProxy(tools::RmaPlugin& plugin, const tools::RmaTarget& target, uint32_t contexts, uint32_t peers);

  // --- The kernel.
  bool has_room(uint32_t context, uint32_t peer, size_t descriptors = 1) const {
    return ring(context, peer).slots.size() + descriptors <= kDepth;
  }
  void push(uint32_t context, uint32_t peer, const Descriptor& descriptor);
  // So many of this ring are over, and all before them.
  uint64_t count_consumed(uint32_t context, uint32_t peer) const { return ring(context, peer).consumed; }
  bool is_idle() const;

  // --- NCCL's thread.
  void tick();
  // The first error of a call that concerns this peer ends its rings, and no others'.
  abi::Result error(uint32_t peer) const { return errors_[peer]; }
  uint64_t count_calls() const { return calls_; }

 private:
  struct Slot {
    Descriptor descriptor;
    void* requests[2] = {};
    bool is_done = false;
  };
  struct Ring {
    std::deque<Slot> slots;
    size_t issued = 0;  // of `slots`
    uint64_t consumed = 0;
  };
  Ring& ring(uint32_t context, uint32_t peer) { return rings_[context * peers_ + peer]; }
  const Ring& ring(uint32_t context, uint32_t peer) const { return rings_[context * peers_ + peer]; }
  void test_all(uint32_t peer, Ring& ring);
  void issue(uint32_t context, uint32_t peer, Ring& ring);
  bool call(uint32_t context, Slot& slot, bool is_hinted);
  void fail(uint32_t peer, abi::Result error);

  tools::RmaPlugin& plugin_;
  const tools::RmaTarget target_;
  const uint32_t contexts_, peers_;
  std::vector<Ring> rings_;  // by context, peer
  std::vector<abi::Result> errors_;
  uint64_t calls_ = 0;
};

}  // namespace verbena::nccl::testing
