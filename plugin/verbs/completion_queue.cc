#include <endian.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "verbs/library.h"
#include "verbs/queues.h"

namespace verbena::verbs {
namespace {

using base::Result;
using base::Status;

constexpr size_t kMaxPollEntries = 16;

CompletionKind classify(ibv_wc_opcode opcode) {
  if (opcode == IBV_WC_RECV_RDMA_WITH_IMM) return CompletionKind::kReceiveWrite;
  return (opcode & IBV_WC_RECV) != 0 ? CompletionKind::kReceive : CompletionKind::kSend;
}

Completion convert(const ibv_wc& entry) {
  Completion completion{};
  completion.cookie = entry.wr_id;
  completion.qp_number = entry.qp_num;
  if (entry.status != IBV_WC_SUCCESS) {  // everything else, the opcode included, is undefined then
    completion.error = entry.status;
    completion.vendor_error = entry.vendor_err;
    return completion;
  }
  completion.kind = classify(entry.opcode);
  completion.length = entry.byte_len;
  if ((entry.wc_flags & IBV_WC_WITH_IMM) != 0) completion.imm = be32toh(entry.imm_data);
  return completion;
}

}  // namespace

void Destroyer::operator()(ibv_cq* queue) const {
  const int error = library->destroy_cq(queue);
  if (error != 0) base::log_warn("completion queue: cannot be destroyed: errno %d", error);
}

Result<CompletionQueue> CompletionQueue::create(Device& device, uint32_t depth_entries) {
  if (depth_entries > device.max_cq_entries()) {
    return base::fail(Status::kSystem,
                      "device %s: cannot create a completion queue: too deep (asked %u, limit %u entries)",
                      device.name().c_str(), depth_entries, device.max_cq_entries());
  }
  const Library& library = device.library();
  ibv_cq* queue = library.create_cq(device.context(), static_cast<int>(depth_entries), nullptr, nullptr, 0);
  if (queue == nullptr) {
    return base::fail_errno(Status::kSystem, errno,
                            "device %s: cannot create a completion queue (depth %u entries)",
                            device.name().c_str(), depth_entries);
  }
  CompletionQueue result;
  result.queue_ = Owned<ibv_cq>(queue, Destroyer{&library});
  return result;
}

int CompletionQueue::poll(std::span<Completion> out) {
  ibv_wc entries[kMaxPollEntries];
  const int wanted = static_cast<int>(std::min(out.size(), kMaxPollEntries));
  const int count = ibv_poll_cq(queue_.get(), wanted, entries);
  for (int i = 0; i < count; ++i) out[i] = convert(entries[i]);
  if (count >= 0) return count;
  if (!is_failure_logged_) {
    is_failure_logged_ = true;
    base::log_warn("completion queue: poll failed: the queue overran or its device is gone (result %d)",
                   count);
  }
  return -1;
}

}  // namespace verbena::verbs
