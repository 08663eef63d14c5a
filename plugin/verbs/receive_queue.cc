#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>

#include "base/hot_path.h"
#include "base/log.h"
#include "verbs/library.h"
#include "verbs/queues.h"

namespace verbena::verbs {
namespace {

using base::Outcome;
using base::Result;
using base::Status;

constexpr size_t kReceiveChainEntries = 32;  // limits the stack of post_chains()

int post_chain(ibv_srq* queue, ibv_recv_wr* first, ibv_recv_wr** rejected) {
  return ibv_post_srq_recv(queue, first, rejected);
}
int post_chain(ibv_qp* pair, ibv_recv_wr* first, ibv_recv_wr** rejected) {
  return ibv_post_recv(pair, first, rejected);
}

template <typename Queue>
[[gnu::cold, gnu::noinline]] base::Error fail_post(const Queue* queue, int error, ptrdiff_t accepted,
                                                   size_t count) {
  return base::fail_errno(Status::kSystem, error, "device %s: cannot post a receive (entry %td of %zu)",
                          name_device(queue->context), accepted, count);
}

// `Queue` is libibverbs's type of a shared receive queue or of a queue pair.
template <typename Queue>
VERBENA_HOT_PATH Outcome post_chains(Queue* queue, std::span<const ReceiveBuffer> buffers) {
  ibv_recv_wr chain[kReceiveChainEntries];
  ibv_sge segments[kReceiveChainEntries];
  while (!buffers.empty()) {
    const size_t count = std::min(buffers.size(), kReceiveChainEntries);
    for (size_t i = 0; i < count; ++i) {
      const ReceiveBuffer& buffer = buffers[i];
      segments[i] = {reinterpret_cast<uintptr_t>(buffer.address), buffer.length, buffer.local_key};
      chain[i] = {buffer.cookie, i + 1 < count ? &chain[i + 1] : nullptr, &segments[i],
                  buffer.length == 0 ? 0 : 1};
    }
    ibv_recv_wr* rejected = nullptr;
    const int error = post_chain(queue, chain, &rejected);
    if (error != 0) return fail_post(queue, error, rejected != nullptr ? rejected - chain : 0, count);
    buffers = buffers.subspan(count);
  }
  return {};
}

}  // namespace

void Destroyer::operator()(ibv_srq* queue) const {
  const char* const device = name_device(queue->context);
  const int error = library->destroy_srq(queue);
  if (error != 0)
    base::log_warn("device %s: a shared receive queue cannot be destroyed (errno %d)", device, error);
}

Result<SharedReceiveQueue> SharedReceiveQueue::create(Device& device, uint32_t depth_entries,
                                                      uint32_t pieces) {
  if (depth_entries > device.max_srq_entries()) {
    return base::fail(Status::kSystem,
                      "device %s: cannot create a shared receive queue of %u entries: the limit is %u",
                      device.name().c_str(), depth_entries, device.max_srq_entries());
  }
  const Library& library = device.library();
  ibv_srq_init_attr attributes{};
  attributes.attr.max_wr = depth_entries;
  attributes.attr.max_sge = pieces;
  ibv_srq* queue = library.create_srq(device.domain(), &attributes);
  if (queue == nullptr) {
    return base::fail_errno(Status::kSystem, errno,
                            "device %s: cannot create a shared receive queue%s (depth %u entries)",
                            device.name().c_str(), hint_at_memory(errno), depth_entries);
  }
  SharedReceiveQueue result;
  result.queue_ = Owned<ibv_srq>(queue, Destroyer{&library});
  return result;
}

struct EqualReceives::Chain {
  static constexpr size_t kEntries = 16;

  ibv_sge segment;
  std::array<ibv_recv_wr, kEntries> entries;
};

EqualReceives::EqualReceives(const ReceiveBuffer& buffer) : chain_(std::make_shared<Chain>()) {
  chain_->segment = {reinterpret_cast<uintptr_t>(buffer.address), buffer.length, buffer.local_key};
  ibv_recv_wr* next = nullptr;
  for (auto entry = chain_->entries.rbegin(); entry != chain_->entries.rend(); ++entry) {
    *entry = {buffer.cookie, next, &chain_->segment, buffer.length == 0 ? 0 : 1};
    next = &*entry;
  }
}

// Posts the last entries of the chain. The device only reads them.
VERBENA_HOT_PATH Outcome SharedReceiveQueue::post(const EqualReceives& receives, size_t count) {
  constexpr size_t kEntries = EqualReceives::Chain::kEntries;
  if (count > kEntries) [[unlikely]] {
    if (Outcome outcome = post(receives, count - kEntries); !outcome) return outcome;
    count = kEntries;
  }
  if (count == 0) return {};
  ibv_recv_wr* const first = receives.chain_->entries.data() + (kEntries - count);
  ibv_recv_wr* rejected = nullptr;
  const int error = ibv_post_srq_recv(queue_.get(), first, &rejected);
  if (error == 0) [[likely]]
    return {};
  return fail_post(queue_.get(), error, rejected != nullptr ? rejected - first : 0, count);
}

VERBENA_HOT_PATH Outcome SharedReceiveQueue::post(std::span<const ReceiveBuffer> buffers) {
  return post_chains(queue_.get(), buffers);
}

Outcome QueuePair::post_receives(std::span<const ReceiveBuffer> buffers) {
  return post_chains(pair_.get(), buffers);
}

}  // namespace verbena::verbs
