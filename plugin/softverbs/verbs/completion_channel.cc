#include <unistd.h>

#include <cerrno>
#include <memory>

#include "softverbs/engine/events.h"
#include "softverbs/engine/objects.h"

using namespace verbena::softverbs;

SOFTVERBS_API ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) try {
  auto channel = std::make_unique<Channel>();
  channel->base.context = context;
  if (!open_event_pipe(channel->pipe, channel->base.fd)) return nullptr;
  return &channel.release()->base;
}
SOFTVERBS_CATCH

SOFTVERBS_API int ibv_destroy_comp_channel(ibv_comp_channel* base) {
  pthread_mutex_lock(&base->context->mutex);
  const bool is_used = base->refcnt > 0;
  pthread_mutex_unlock(&base->context->mutex);
  if (is_used) return EBUSY;
  auto* channel = reinterpret_cast<Channel*>(base);
  close_event_pipe(channel->pipe, base->fd);
  delete channel;
  return 0;
}

SOFTVERBS_API int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** cq_context) {
  for (;;) {
    uint64_t token = 0;
    if (read(channel->fd, &token, sizeof(token)) != sizeof(token)) return -1;
    void* object = get_event_table().deliver(token, &EventTable::Delivered::completion);
    if (object == nullptr) continue;  // the queue was destroyed in the meantime
    *cq = &static_cast<Cq*>(object)->base;
    *cq_context = (*cq)->cq_context;
    return 0;
  }
}

SOFTVERBS_API void ibv_ack_cq_events(ibv_cq* cq, unsigned int count) {
  pthread_mutex_lock(&cq->mutex);
  cq->comp_events_completed += count;
  pthread_cond_signal(&cq->cond);
  pthread_mutex_unlock(&cq->mutex);
}
