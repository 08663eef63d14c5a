// Implements message_queue.h.
#include "verbena/message_queue.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <span>
#include <thread>

#include "base/log.h"
#include "device/api/objects.h"
#include "device/message_queue/reader.h"
#include "device/message_queue/writer.h"

using namespace verbena;
using api::guard;
using api::guard_end;
using base::Outcome;
using base::Status;
using message_queue::Handle;

namespace {

// A bit of verbena_queue::calls: the queue was shut down.
constexpr uint32_t kShut = uint32_t{1} << 31;

}  // namespace

// A writer or a reader.
struct verbena_queue {
  base::OwnProcess process = {};
  std::unique_ptr<message_queue::Writer> writer = nullptr;
  std::unique_ptr<message_queue::Reader> reader = nullptr;
  std::atomic<uint32_t> calls{0};  // number of calls in progress, and the bit kShut
  std::mutex ending = {};          // guards ending the queue

  void end() {
    const std::lock_guard lock(ending);
    writer ? writer->end() : reader->end();
  }
  void cancel(bool is_for_good) {
    const std::lock_guard lock(ending);
    writer ? writer->cancel(is_for_good) : reader->cancel(is_for_good);
  }
};

namespace {

static_assert(sizeof(verbena_queue_handle) == sizeof(Handle));

Outcome fail_null(const char* what) {
  return base::fail(Status::kInvalidArgument, "api: %s is NULL", what);
}

// Counts a call in progress. The last call to leave a queue that was shut down ends the queue, because a
// signal handler may shut it down during a call of the same thread.
class Call {
 public:
  explicit Call(verbena_queue& queue)
      : queue_(queue),
        outer_(innermost),
        is_admitted_((queue.calls.fetch_add(1, std::memory_order_acquire) & kShut) == 0) {
    innermost = this;
  }
  // Another thread may free the queue as soon as the count is 0.
  ~Call() {
    innermost = outer_;
    uint32_t calls = queue_.calls.load(std::memory_order_acquire);
    do {
      if (calls == (kShut | 1)) queue_.end();
    } while (!queue_.calls.compare_exchange_weak(calls, calls - 1, std::memory_order_acq_rel));
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool is_admitted() const { return is_admitted_; }
  // The error of the calling thread.
  static bool is_under_way(const verbena_queue& queue) {
    const Call* call = innermost;
    while (call != nullptr && &call->queue_ != &queue) call = call->outer_;
    return call != nullptr;
  }

 private:
  static inline thread_local const Call* innermost = nullptr;
  verbena_queue& queue_;
  const Call* outer_;
  bool is_admitted_;
};

// Wraps every call except those that end the queue.
template <typename Body>
verbena_result enter(verbena_queue* queue, const Body& body) {
  return guard(queue->process, [&]() -> Outcome {
    const Call call(*queue);
    if (!call.is_admitted())
      return base::fail_quietly(Status::kInvalidUsage,
                                "queue: the call was cancelled: this process has shut the queue down");
    return body();
  });
}

// Runs `call` on the writer or on the reader, depending on its parameter.
template <typename Call>
verbena_result on_writer(verbena_queue* queue, const Call& call) {
  return enter(queue, [&]() -> Outcome {
    if (queue->writer == nullptr)
      return base::fail(Status::kInvalidUsage,
                        "queue: only the writer may make this call, but this queue is a reader");
    return call(*queue->writer);
  });
}
template <typename Call>
verbena_result on_reader(verbena_queue* queue, const Call& call) {
  return enter(queue, [&]() -> Outcome {
    if (queue->reader == nullptr)
      return base::fail(Status::kInvalidUsage, "queue: only a reader may make this call");
    return call(*queue->reader);
  });
}

}  // namespace

extern "C" {

verbena_result verbena_queue_create(const verbena_queue_options* options, verbena_queue** queue) {
  return guard([&]() -> Outcome {
    if (options == nullptr || queue == nullptr) return fail_null("options or queue");
    if (auto loaded = api::load_settings(); !loaded) return loaded;
    const auto address = api::read_address(options->address);
    if (!address) return address.error();
    const uint32_t* const ranks = options->reader_ranks;
    auto made = message_queue::Writer::create(
        {.shape = {options->count_readers, options->count_chunks, options->chunk_bytes},
         .spin_us = options->spin_us,
         .bind = *address,
         .reader_ranks = ranks == nullptr ? std::vector<uint32_t>()
                                          : std::vector<uint32_t>(ranks, ranks + options->count_readers)});
    if (!made) return made.error();
    *queue = new verbena_queue{.writer = std::move(*made)};
    return {};
  });
}

verbena_result verbena_queue_get_handle(const verbena_queue* queue, verbena_queue_handle* handle) {
  return guard([&]() -> Outcome {
    if (queue == nullptr || queue->writer == nullptr || handle == nullptr)
      return fail_null("writer or handle");
    std::memcpy(handle->bytes, &queue->writer->handle(), sizeof(Handle));
    return {};
  });
}

verbena_result verbena_queue_get_address(const verbena_queue* queue, char* text, size_t length) {
  return guard([&]() -> Outcome {
    if (queue == nullptr || queue->writer == nullptr) return fail_null("writer");
    api::copy_text(base::describe(queue->writer->handle().writer), text, length);
    return {};
  });
}

verbena_result verbena_queue_attach(const verbena_queue_handle* handle, uint32_t reader, int64_t spin_us,
                                    verbena_queue** queue) {
  return guard([&]() -> Outcome {
    if (handle == nullptr || queue == nullptr) return fail_null("handle or queue");
    if (auto loaded = api::load_settings(); !loaded) return loaded;
    Handle known;
    std::memcpy(&known, handle->bytes, sizeof(known));
    auto made = message_queue::Reader::attach(known, reader, spin_us);
    if (!made) return made.error();
    *queue = new verbena_queue{.reader = std::move(*made)};
    return {};
  });
}

verbena_result verbena_queue_wait_until_ready(verbena_queue* queue, int64_t timeout_ms) {
  return enter(queue, [&] {
    return queue->writer ? queue->writer->wait_until_ready(timeout_ms)
                         : queue->reader->wait_until_ready(timeout_ms);
  });
}

int verbena_queue_is_local(const verbena_queue* queue) {
  if (queue->reader) return queue->reader->is_local() ? 1 : 0;
  return queue->writer->count_local() == queue->writer->handle().count_readers ? 1 : 0;
}

verbena_result verbena_queue_pin(verbena_queue* queue) {
  return enter(queue, [&] { return queue->writer ? queue->writer->pin() : queue->reader->pin(); });
}

verbena_result verbena_queue_shutdown(verbena_queue* queue) {
  return guard_end(queue->process, [&]() -> Outcome {
    queue->cancel(true);
    queue->calls.fetch_or(kShut, std::memory_order_acq_rel);
    if (Call::is_under_way(*queue)) return {};
    while (queue->calls.load(std::memory_order_acquire) != kShut)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    queue->end();
    return {};
  });
}

verbena_result verbena_queue_destroy(verbena_queue* queue) {
  if (queue == nullptr) return VERBENA_SUCCESS;
  return guard_end(queue->process, [&]() -> Outcome {
    if (queue->reader && queue->reader->count_held() != 0) {
      return base::fail(Status::kInvalidUsage,
                        "queue: reader: the reader was destroyed before %zu of its messages were released. "
                        "Release all messages first",
                        queue->reader->count_held());
    }
    delete queue;
    return {};
  });
}

void verbena_queue_cancel(verbena_queue* queue) {
  if (queue->process.is_here()) queue->cancel(false);
}

verbena_result verbena_queue_enqueue(verbena_queue* queue, const verbena_queue_part* parts, size_t count,
                                     int64_t timeout_ms) {
  return on_writer(queue, [&](message_queue::Writer& writer) -> Outcome {
    constexpr size_t kFew = 8;  // max number of parts whose list is kept on the stack
    std::span<const std::byte> few[kFew];
    std::vector<std::span<const std::byte>> many(count > kFew ? count : 0);
    const std::span<std::span<const std::byte>> all =
        count > kFew ? std::span(many) : std::span(few).first(count);
    for (size_t i = 0; i < count; ++i)
      all[i] = {static_cast<const std::byte*>(parts[i].data), parts[i].length};
    return writer.enqueue(all, timeout_ms);
  });
}

verbena_result verbena_queue_reserve(verbena_queue* queue, int64_t timeout_ms, void** data) {
  return on_writer(queue, [&](message_queue::Writer& writer) -> Outcome {
    const auto chunk = writer.reserve(timeout_ms);
    if (!chunk) return chunk.error();
    *data = chunk->data();
    return {};
  });
}

verbena_result verbena_queue_commit(verbena_queue* queue, size_t length) {
  return on_writer(queue, [&](message_queue::Writer& writer) { return writer.commit(length); });
}

verbena_result verbena_queue_drop_reader(verbena_queue* queue, uint32_t reader) {
  return on_writer(queue, [&](message_queue::Writer& writer) { return writer.drop_reader(reader); });
}

verbena_result verbena_queue_dequeue(verbena_queue* queue, int64_t timeout_ms,
                                     verbena_queue_message* message) {
  return on_reader(queue, [&](message_queue::Reader& reader) -> Outcome {
    const auto got = reader.dequeue(timeout_ms);
    if (!got) return got.error();
    *message = {got->bytes.data(), got->bytes.size(), got->ticket};
    return {};
  });
}

verbena_result verbena_queue_release(verbena_queue* queue, uint64_t ticket) {
  return guard(queue->process, [&]() -> Outcome {  // also after the queue was shut down
    const Call call(*queue);
    if (queue->reader == nullptr)
      return base::fail(Status::kInvalidUsage, "queue: only a reader may make this call");
    const std::lock_guard lock(queue->ending);
    return queue->reader->release(ticket);
  });
}

}  // extern "C"
