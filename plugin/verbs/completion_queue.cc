#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "base/log.h"
#include "verbs/async_events.h"
#include "verbs/library.h"
#include "verbs/queues.h"

namespace verbena::verbs {
namespace {

using base::Result;
using base::Status;

static_assert(sizeof(Completion) == sizeof(ibv_wc) && alignof(Completion) == alignof(ibv_wc));
static_assert(offsetof(Completion, cookie) == offsetof(ibv_wc, wr_id));
static_assert(offsetof(Completion, error) == offsetof(ibv_wc, status) && IBV_WC_SUCCESS == 0);
static_assert(offsetof(Completion, opcode) == offsetof(ibv_wc, opcode));
static_assert(offsetof(Completion, vendor_error) == offsetof(ibv_wc, vendor_err));
static_assert(offsetof(Completion, length) == offsetof(ibv_wc, byte_len));
static_assert(offsetof(Completion, network_imm) == offsetof(ibv_wc, imm_data));
static_assert(offsetof(Completion, qp_number) == offsetof(ibv_wc, qp_num));
static_assert(offsetof(Completion, flags) == offsetof(ibv_wc, wc_flags));
static_assert(Completion::kReceiveOpcode == IBV_WC_RECV && Completion::kWithImm == IBV_WC_WITH_IMM);
static_assert(Completion::kReceiveWriteOpcode == IBV_WC_RECV_RDMA_WITH_IMM);

}  // namespace

void Destroyer::operator()(ibv_cq* queue) const {
  const char* const device = name_device(queue->context);
  const int error = library->destroy_cq(queue);
  if (error != 0)
    base::log_warn("device %s: a completion queue cannot be destroyed (errno %d)", device, error);
}

EventMark::EventMark(Device& device, const void* queue) : device_(device), queue_(queue) {
  device_.events().watch(queue_, &is_set_);
}

EventMark::~EventMark() {
  device_.events().forget(queue_);
}

Result<CompletionQueue> CompletionQueue::create(Device& device, uint32_t depth_entries) {
  if (depth_entries > device.max_cq_entries()) {
    return base::fail(Status::kSystem,
                      "device %s: cannot create a completion queue of %u entries: the limit is %u",
                      device.name().c_str(), depth_entries, device.max_cq_entries());
  }
  const Library& library = device.library();
  ibv_cq* queue = library.create_cq(device.context(), static_cast<int>(depth_entries), nullptr, nullptr, 0);
  if (queue == nullptr) {
    return base::fail_errno(Status::kSystem, errno,
                            "device %s: cannot create a completion queue%s (depth %u entries)",
                            device.name().c_str(), hint_at_memory(errno), depth_entries);
  }
  CompletionQueue result;
  result.queue_ = Owned<ibv_cq>(queue, Destroyer{&library});
  result.poll_ = queue->context->ops.poll_cq;
  result.failed_ = std::make_unique<EventMark>(device, queue);
  return result;
}

void CompletionQueue::note_failure(int result) {
  if (!is_failure_logged_) {
    is_failure_logged_ = true;
    base::log_warn(
        "device %s: a completion queue cannot be polled, because the queue overran or the device is gone. "
        "See dmesg (result %d)",
        name_device(queue_->context), result);
  }
}

}  // namespace verbena::verbs
