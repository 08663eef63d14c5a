// Async events of the fake: a pipe for each open context.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "fake_objects.h"

namespace verbena::verbs::fake {
namespace {

std::mutex open_mutex;

std::vector<FakeContext*>& open_contexts() {
  static std::vector<FakeContext*> contexts;
  return contexts;
}

}  // namespace

void note_open(FakeContext* context) {
  const std::lock_guard lock(open_mutex);
  open_contexts().push_back(context);
}

void note_closed(FakeContext* context) {
  const std::lock_guard lock(open_mutex);
  std::erase(open_contexts(), context);
}

void raise_event(const char* device_name, ibv_event_type type, int port_number, void* element) {
  ibv_async_event event{};
  event.event_type = type;
  if (element != nullptr) {
    std::memcpy(&event.element, &element, sizeof(element));
  } else {
    event.element.port_num = port_number;
  }
  const std::lock_guard lock(open_mutex);
  for (FakeContext* context : open_contexts()) {
    if (context->description->name != device_name) continue;
    if (write(context->event_pipe[1], &event, sizeof(event)) != sizeof(event)) std::abort();
  }
}

void break_events(const char* device_name) {
  const std::lock_guard lock(open_mutex);
  for (FakeContext* context : open_contexts()) {
    if (context->description->name != device_name) continue;
    close(context->event_pipe[1]);  // the reading end hangs up, for ever
    context->event_pipe[1] = -1;
  }
}

}  // namespace verbena::verbs::fake

using namespace verbena::verbs::fake;

extern "C" {

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  ++hooks().record.event_reads;
  const ssize_t count = read(context->async_fd, event, sizeof(*event));
  if (count == static_cast<ssize_t>(sizeof(*event))) return 0;
  if (count == 0) errno = EIO;
  return -1;
}

void ibv_ack_async_event(ibv_async_event*) {
  ++hooks().record.acknowledged_events;
}

const char* ibv_event_type_str(ibv_event_type) {
  return "fake event";
}

}  // extern "C"
