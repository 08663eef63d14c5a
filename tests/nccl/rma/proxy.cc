#include "nccl/rma/proxy.h"

#include <algorithm>

namespace verbena::nccl::testing {

GinProxy::GinProxy(tools::RmaPlugin& plugin, const tools::RmaTarget& target, uint32_t contexts,
                   uint32_t peers)
    : plugin_(plugin),
      target_(target),
      contexts_(contexts),
      peers_(peers),
      rings_(size_t{contexts} * peers),
      errors_(peers, abi::kSuccess) {}

void GinProxy::push(uint32_t context, uint32_t peer, const Descriptor& descriptor) {
  ring(context, peer).slots.push_back({.descriptor = descriptor});
}

bool GinProxy::is_idle() const {
  return std::all_of(rings_.begin(), rings_.end(), [](const Ring& ring) { return ring.slots.empty(); });
}

void GinProxy::tick() {
  for (uint32_t context = 0; context < contexts_; ++context) {
    for (uint32_t peer = 0; peer < peers_; ++peer) test_all(peer, ring(context, peer));
    for (uint32_t peer = 0; peer < peers_; ++peer) issue(context, peer, ring(context, peer));
  }
  ++calls_;
  plugin_.progress(target_);
}

// All that are under way, in their order; the ring moves on over those that are done at its front.
void GinProxy::test_all(uint32_t peer, Ring& ring) {
  for (size_t i = 0; i < ring.issued; ++i) {
    Slot& slot = ring.slots[i];
    if (slot.is_done) continue;
    slot.is_done = true;
    for (void*& request : slot.requests) {
      if (request == nullptr) continue;
      int is_done = 0;
      ++calls_;
      if (const abi::Result result = plugin_.test(target_, request, &is_done); result != abi::kSuccess) {
        fail(peer, result);
        return;
      }
      if (is_done != 0) {
        request = nullptr;
      } else {
        slot.is_done = false;
      }
    }
  }
  for (; ring.issued > 0 && ring.slots.front().is_done; --ring.issued, ++ring.consumed)
    ring.slots.pop_front();
}

// A hint is followed by another of the same ring in the same tick.
void GinProxy::issue(uint32_t context, uint32_t peer, Ring& ring) {
  const size_t end = std::min<size_t>(ring.slots.size(), ring.issued + kBatch);
  while (ring.issued < end) {
    Slot& slot = ring.slots[ring.issued++];
    if (!call(context, slot, ring.issued < end)) return fail(peer, errors_[peer]);
  }
}

bool GinProxy::call(uint32_t context, Slot& slot, bool is_hinted) {
  using Kind = Descriptor::Kind;
  tools::RmaTarget target = target_;
  target.index = static_cast<int>(context);
  tools::RmaCopy copy = slot.descriptor.copy;
  copy.is_hinted = is_hinted || slot.descriptor.kind == Kind::kPutThenSignal;
  abi::Result result = abi::kSuccess;
  ++calls_;
  switch (slot.descriptor.kind) {
    case Kind::kPut:
      result = plugin_.put(target, copy, &slot.requests[0]);
      break;
    case Kind::kPutSignal:
      result = plugin_.put_signal(target, copy, slot.descriptor.add, &slot.requests[0]);
      break;
    case Kind::kPutThenSignal: {
      result = plugin_.put(target, copy, &slot.requests[0]);
      if (result != abi::kSuccess) break;
      const tools::RmaCopy nothing{0, nullptr, 0, 0, nullptr, copy.rank, is_hinted};
      result = plugin_.put_signal(target, nothing, slot.descriptor.add, &slot.requests[1]);
      break;
    }
    case Kind::kGet:
      result = plugin_.get(target, copy, &slot.requests[0]);
      break;
    case Kind::kFlush:
      result = plugin_.flush(target, slot.descriptor.copy.local, copy.rank, &slot.requests[0]);
      break;
  }
  // NCCL takes a request that is null for an error, but after a flush.
  if (result == abi::kSuccess && slot.requests[0] == nullptr && slot.descriptor.kind != Kind::kFlush)
    result = abi::kInternalError;
  if (result != abi::kSuccess) errors_[copy.rank] = result;
  return result == abi::kSuccess;
}

void GinProxy::fail(uint32_t peer, abi::Result error) {
  errors_[peer] = error;
  for (uint32_t context = 0; context < contexts_; ++context) {
    Ring& lost = ring(context, peer);
    lost.slots.clear();
    lost.issued = 0;
  }
}

}  // namespace verbena::nccl::testing
