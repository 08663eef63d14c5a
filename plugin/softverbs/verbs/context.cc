#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>

#include "softverbs/engine/events.h"
#include "softverbs/engine/memory_window.h"
#include "softverbs/engine/objects.h"
#include "softverbs/faults/faults.h"
#include "softverbs/shared/profile.h"
#include "softverbs/verbs/extended_verbs.h"

// verbs.h defines these names as macros for applications. Here they are functions.
#undef ibv_query_port

namespace verbena::softverbs {
namespace {

void install_operations(Context& context) {
  verbs_context& verbs = context.verbs;
  verbs.sz = sizeof(verbs_context);
  verbs.query_port = query_port_sized;
  verbs.query_device_ex = query_device_sized;
  verbs.query_rt_values = query_clock;
  verbs.create_cq_ex = create_cq_extended;
  verbs.create_qp_ex = create_qp_extended;
  verbs.alloc_td = allocate_thread_domain;
  verbs.dealloc_td = deallocate_thread_domain;
  verbs.alloc_parent_domain = allocate_parent_domain;
  verbs.alloc_dm = allocate_device_memory;
  verbs.free_dm = free_device_memory;
  verbs.reg_dm_mr = register_device_memory;
  verbs.advise_mr = advise_memory;
  ibv_context_ops& ops = verbs.context.ops;
  ops._compat_query_port = ibv_query_port;
  ops._compat_query_device = ibv_query_device;
  ops.alloc_mw = allocate_window;
  ops.bind_mw = bind_window;
  ops.dealloc_mw = deallocate_window;
  ops.poll_cq = poll_cq;
  ops.req_notify_cq = request_notification;
  ops.post_send = post_send;
  ops.post_recv = post_receive;
  ops.post_srq_recv = post_shared_receive;
}

// Sets the element of the event, and the count that acknowledging it raises.
void fill_event(const AsyncRecord& record, void* object, ibv_async_event& event) {
  event.event_type = static_cast<ibv_event_type>(record.type);
  if (object == nullptr) {
    event.element.port_num = static_cast<int>(record.token);
  } else {
    event.element.qp = static_cast<ibv_qp*>(object);  // a union of pointers
  }
}

void acknowledge(pthread_mutex_t& mutex, pthread_cond_t& condition, uint32_t& completed) {
  pthread_mutex_lock(&mutex);
  ++completed;
  pthread_cond_signal(&condition);
  pthread_mutex_unlock(&mutex);
}

}  // namespace
}  // namespace verbena::softverbs

using namespace verbena::softverbs;

namespace {

// The file names the device, so that ibv_import_device can open the device from a copy of the descriptor.
int open_command_fd(const Device& device) {
  const int fd = memfd_create("softverbs", MFD_CLOEXEC);
  if (fd >= 0 && pwrite(fd, &device.index, sizeof(device.index), 0) == sizeof(device.index)) return fd;
  const int error = errno;
  warn("%s cannot be opened, because memfd_create failed: %s. Check ulimit -n and the seccomp profile",
       device.base.name, strerror(error));
  if (fd >= 0) close(fd);
  errno = error;
  return -1;
}

ibv_context* open_context(ibv_device* device, int command_fd) try {
  Process* process = Process::get();
  if (process == nullptr) return nullptr;
  if (!get_profile().is_valid || !faults::start(*process)) return fail_with<ibv_context>(EINVAL);
  const int64_t index = process->contexts.allocate();
  if (index < 0) return fail_with<ibv_context>(ENOMEM);
  auto context = std::make_unique<Context>();
  context->device = reinterpret_cast<Device*>(device);
  context->index = static_cast<uint32_t>(index);
  ibv_context& base = context->verbs.context;
  if (!open_event_pipe(process->segment().header().async_pipes[index], base.async_fd)) {
    process->contexts.free(context->index);
    return nullptr;
  }
  base.device = device;
  base.cmd_fd = command_fd;
  base.num_comp_vectors = 1;
  pthread_mutex_init(&base.mutex, nullptr);
  // Marks that a verbs_context precedes this structure.
  base.abi_compat = reinterpret_cast<void*>(UINTPTR_MAX);
  install_operations(*context);
  process->rails.add(*context);
  return &context.release()->verbs.context;
}
SOFTVERBS_CATCH

}  // namespace

SOFTVERBS_API ibv_context* ibv_open_device(ibv_device* device) {
  const int command_fd = open_command_fd(*reinterpret_cast<Device*>(device));
  if (command_fd < 0) return nullptr;
  ibv_context* context = open_context(device, command_fd);
  if (context == nullptr) close(command_fd);
  return context;
}

// Takes ownership of the descriptor.
SOFTVERBS_API ibv_context* ibv_import_device(int command_fd) {
  uint32_t index = 0;
  if (pread(command_fd, &index, sizeof(index), 0) != sizeof(index) ||
      index >= static_cast<uint32_t>(get_config().devices))
    return fail_with<ibv_context>(EINVAL);
  return open_context(&get_devices()[index]->base, command_fd);
}

SOFTVERBS_API int ibv_close_device(ibv_context* base) {
  Context& context = get_context(base);
  Process* process = Process::get();
  process->rails.remove(context);
  close_event_pipe(process->segment().header().async_pipes[context.index], base->async_fd);
  process->contexts.free(context.index);
  close(base->cmd_fd);
  pthread_mutex_destroy(&base->mutex);
  delete &context;
  return 0;
}

SOFTVERBS_API int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  for (;;) {
    AsyncRecord record{};
    if (read(context->async_fd, &record, sizeof(record)) != sizeof(record)) return -1;
    const bool is_about_object = record.token > UINT32_MAX;
    void* object = nullptr;
    if (is_about_object) {
      object = get_event_table().deliver(record.token, &EventTable::Delivered::async);
      if (object == nullptr) continue;  // destroyed in the meantime
    }
    fill_event(record, object, *event);
    return 0;
  }
}

SOFTVERBS_API void ibv_ack_async_event(ibv_async_event* event) {
  switch (event->event_type) {
    case IBV_EVENT_CQ_ERR: {
      ibv_cq* cq = event->element.cq;
      acknowledge(cq->mutex, cq->cond, cq->async_events_completed);
      return;
    }
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED: {
      ibv_qp* qp = event->element.qp;
      acknowledge(qp->mutex, qp->cond, qp->events_completed);
      return;
    }
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED: {
      ibv_srq* srq = event->element.srq;
      acknowledge(srq->mutex, srq->cond, srq->events_completed);
      return;
    }
    default:
      return;  // an event of a port or the device
  }
}
