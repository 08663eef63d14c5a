#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>

#include "fake_cuda.h"

// Streams are threads that take their time; events count what their stream had to do.
namespace fake_cuda {

// A thread sanitizer would watch memcpy, and report races between accesses that other processes order.
#ifdef __SANITIZE_THREAD__
__attribute__((no_sanitize("thread"))) void copy_unwatched(uint8_t* to, const uint8_t* from, size_t bytes) {
  const bool is_word = bytes == 8 && reinterpret_cast<uintptr_t>(to) % 8 == 0;
  if (is_word) {  // whole, as a GPU copies it
    uint64_t word = 0;
    for (size_t i = 0; i < bytes; ++i) word |= uint64_t{from[i]} << 8 * i;
    *reinterpret_cast<volatile uint64_t*>(to) = word;
    return;
  }
  for (size_t i = 0; i < bytes; ++i) {
    to[i] = from[i];
    asm volatile("" ::: "memory");  // keeps the compiler from making this a memcpy
  }
}
#else
void copy_unwatched(uint8_t* to, const uint8_t* from, size_t bytes) {
  memcpy(to, from, bytes);
}
#endif

}  // namespace fake_cuda

using namespace fake_cuda;

namespace {

// What runs a kernel: `capture` in the call that launches it, as the parameters are read then, and `run` with
// what that returned, in the stream's order.
struct Launcher {
  void* (*capture)(const char* name, unsigned blocks, unsigned threads, void** parameters);
  void (*run)(void* captured);
};
std::atomic<const Launcher*> launcher{nullptr};
std::atomic<bool> are_held{false};  // asynchronous copies

struct Stream {
  struct Copy {
    uint8_t* to;
    const uint8_t* from;
    size_t bytes;
    void* kernel = nullptr;  // instead
    uint64_t value = 0;      // copied, where `from` is null
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Copy> copies;
  uint64_t issued = 0, done = 0;
  std::thread thread{[this] { work(); }};

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return !copies.empty(); });
      const Copy copy = copies.front();
      copies.pop_front();
      lock.unlock();
      do usleep(20);
      while (are_held);
      if (copy.kernel != nullptr) {
        launcher.load()->run(copy.kernel);
      } else {
        const auto* const value = reinterpret_cast<const uint8_t*>(&copy.value);
        copy_unwatched(copy.to, copy.from == nullptr ? value : copy.from, copy.bytes);
      }
      lock.lock();
      ++done;
    }
  }
};

std::atomic<int64_t> copies_left{INT64_MAX};
std::atomic<int> calls{0}, batch_calls{0};

struct MemOperation {
  int operation;
  Pointer address;
  uint64_t value;
  unsigned flags;
  uint64_t unused[2];
};
static_assert(sizeof(MemOperation) == 48);

struct Event {
  Stream* stream = nullptr;
  uint64_t count = 0;
};

int copy_now(Pointer to, Pointer from, size_t bytes) {
  uint8_t* target = resolve(to, bytes);
  const uint8_t* source = resolve(from, bytes);
  if (target == nullptr || source == nullptr) return kInvalidValue;
  copy_unwatched(target, source, bytes);
  return kSuccess;
}

}  // namespace

API cuStreamCreateWithPriority(Stream** stream, unsigned, int) {
  *stream = new Stream;
  return kSuccess;
}
API cuEventCreate(Event** event, unsigned) {
  *event = new Event;
  return kSuccess;
}
API cuEventRecord(Event* event, Stream* stream) {
  std::lock_guard lock(stream->mutex);
  event->stream = stream;
  event->count = stream->issued;
  return kSuccess;
}
API cuEventQuery(Event* event) {
  std::lock_guard lock(event->stream->mutex);
  return event->stream->done >= event->count ? kSuccess : kNotReady;
}
// Of this stand-in: a test asks for refusals.
API fakeRefuseCopiesAfter(int copies) {
  copies_left.store(copies);
  return kSuccess;
}
// Copies that were asked for begin once they are not held any more.
API fakeHoldCopies(int is_held) {
  are_held.store(is_held != 0);
  return kSuccess;
}
// How often the driver was asked to copy, one or many at a time.
API fakeCountCalls(int* all, int* batches) {
  *all = calls.load();
  *batches = batch_calls.load();
  return kSuccess;
}
static int add_copy(Pointer to, Pointer from, size_t bytes, Stream* stream) {
  if (!has_context()) return kInvalidContext;
  if (copies_left.fetch_sub(1) <= 0) return kInvalidValue;
  uint8_t* target = resolve(to, bytes);
  const uint8_t* source = resolve(from, bytes);
  if (target == nullptr || source == nullptr) return kInvalidValue;
  std::lock_guard lock(stream->mutex);
  stream->copies.push_back({target, source, bytes, nullptr});
  ++stream->issued;
  stream->changed.notify_one();
  return kSuccess;
}
API cuMemcpyAsync(Pointer to, Pointer from, size_t bytes, Stream* stream) {
  ++calls;
  return add_copy(to, from, bytes, stream);
}
// Of the variants of an operation, only the one that writes a word.
// FAKE_CUDA_OLD: a driver that has none.
API cuStreamBatchMemOp_v2(Stream* stream, unsigned count, const MemOperation* operations, unsigned) {
  constexpr int kWriteWord = 5;
  static const bool is_old = getenv("FAKE_CUDA_OLD") != nullptr;
  if (is_old) return kInvalidValue;
  for (const MemOperation& operation : std::span(operations, count)) {
    const bool is_known = operation.operation == kWriteWord && operation.address % sizeof(uint64_t) == 0;
    uint8_t* const target = resolve(operation.address, sizeof(uint64_t));
    if (!has_context() || !is_known || target == nullptr) return kInvalidValue;
    std::lock_guard lock(stream->mutex);
    stream->copies.push_back({target, nullptr, sizeof(uint64_t), nullptr, operation.value});
    ++stream->issued;
    stream->changed.notify_one();
  }
  return kSuccess;
}
// The last copy first, because callers must not rely on the order within a batch.
API cuMemcpyBatchAsync(Pointer* to, Pointer* from, size_t* bytes, size_t count, void*, size_t*, size_t,
                       size_t*, Stream* stream) {
  ++calls, ++batch_calls;
  for (size_t i = count; i-- > 0;) {
    if (const int error = add_copy(to[i], from[i], bytes[i], stream); error != kSuccess) return error;
  }
  return kSuccess;
}
API cuMemcpyHtoD_v2(Pointer to, const void* from, size_t bytes) {
  return copy_now(to, reinterpret_cast<Pointer>(from), bytes);
}
API cuMemcpyDtoH_v2(void* to, Pointer from, size_t bytes) {
  return copy_now(reinterpret_cast<Pointer>(to), from, bytes);
}
// Of this stand-in; the launcher is the caller's, as long as the process.
API fake_set_launcher(const Launcher* given) {
  launcher.store(given);
  return kSuccess;
}
// A module is its text, a function a name in it, which stays for good.
API cuModuleLoadDataEx(const char** module, const void* image, unsigned, int*, void**) {
  *module = static_cast<const char*>(image);
  return has_context() && strstr(*module, ".visible .entry ") != nullptr ? kSuccess : kInvalidValue;
}
API cuModuleGetFunction(char** function, const char* module, const char* name) {
  const std::string entry = std::string(".visible .entry ") + name + "(";
  if (strstr(module, entry.c_str()) == nullptr) return kInvalidValue;
  static auto* const names = new std::set<std::string>;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  *function = const_cast<char*>(names->emplace(name).first->c_str());
  return kSuccess;
}
API cuLaunchKernel(const char* function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned,
                   unsigned, unsigned, Stream* stream, void** parameters, void**) {
  const Launcher* const by = launcher.load();
  if (!has_context() || by == nullptr || stream == nullptr) return kInvalidValue;
  void* const kernel = by->capture(function, blocks, threads, parameters);
  std::lock_guard lock(stream->mutex);
  stream->copies.push_back({nullptr, nullptr, 0, kernel});
  ++stream->issued;
  stream->changed.notify_one();
  return kSuccess;
}
API cuStreamSynchronize(Stream* stream) {
  for (;;) {
    {
      std::lock_guard lock(stream->mutex);
      if (stream->done == stream->issued) return kSuccess;
    }
    usleep(20);
  }
}
// Its thread stays: it may be in the middle of its wait.
API cuStreamDestroy_v2(Stream*) {
  return kSuccess;
}
