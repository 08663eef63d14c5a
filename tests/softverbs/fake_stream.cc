#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <set>
#include <shared_mutex>
#include <span>
#include <string>
#include <system_error>
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
std::atomic<int> own_spinning{0};  // kernels of this process, in whichever context

// FAKE_CUDA_HOSTILE: what H100s do with driver 580 (measured). Copies by the channel that shares the SMs with
// kernels wait while a kernel of another context spins, here until it ends.
bool is_hostile() {
  static const bool is = getenv("FAKE_CUDA_HOSTILE") != nullptr;
  return is;
}
enum class Shape { kLine, kRows };
bool needs_sms(int to_gpu, int from_gpu, size_t bytes, Shape shape) {
  constexpr size_t kLeastToGpu = 32768, kLeastBetween = 4096;
  if (to_gpu == kHost) return false;
  if (from_gpu == kHost) return shape == Shape::kLine && bytes < kLeastToGpu;
  return to_gpu == from_gpu || bytes < kLeastBetween;
}

bool may_test_forms() {
  static const bool may = is_hostile() || getenv("FAKE_CUDA_LATE_EVENTS") != nullptr;
  return may;
}

struct Spin {
  Context* context;
  const volatile uint64_t* word;  // until it is not 0
  const volatile uint32_t* half;  // or this one
  volatile uint32_t* begun;
};
std::mutex spins_mutex;
std::multiset<Context*> spin_contexts;

// Kernels on this GPU that do not leave the SMs to this context.
int count_others(const Context* context) {
  const std::lock_guard lock(spins_mutex);
  const int own = static_cast<int>(spin_contexts.count(const_cast<Context*>(context)));
  return get_state().spinning[context->gpu].load() - own;
}

void spin(const Spin& kernel) {
  {
    const std::lock_guard lock(spins_mutex);
    spin_contexts.insert(kernel.context);
  }
  ++own_spinning;
  ++get_state().spinning[kernel.context->gpu];
  if (kernel.begun != nullptr) *kernel.begun = 1;
  while (kernel.word != nullptr ? *kernel.word == 0 : *kernel.half == 0) usleep(50);
  --get_state().spinning[kernel.context->gpu];
  --own_spinning;
  const std::lock_guard lock(spins_mutex);
  spin_contexts.erase(spin_contexts.find(kernel.context));
}

struct Stream {
  struct Copy {
    uint8_t* to;
    const uint8_t* from;
    size_t bytes;
    void* kernel = nullptr;    // instead
    uint64_t value = 0;        // copied, where `from` is null
    Spin* spin = nullptr;      // instead
    Context* waits = nullptr;  // for the kernels of other contexts
  };
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Copy> copies;
  uint64_t issued = 0, done = 0;
  std::thread thread{[this] { work(); }};

  void work() {
    constexpr unsigned long kTimerSlackNs = 1000;
    prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0, 0, 0);
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return !copies.empty(); });
      const Copy copy = copies.front();
      copies.pop_front();
      lock.unlock();
      do usleep(20);
      while (get_state().are_held);
      while (copy.waits != nullptr && count_others(copy.waits) > 0) usleep(50);
      if (copy.spin != nullptr) {
        spin(*copy.spin);
        delete copy.spin;
      } else if (copy.kernel != nullptr) {
        launcher.load()->run(copy.kernel);
      } else {
        const auto* const value = reinterpret_cast<const uint8_t*>(&copy.value);
        copy_unwatched(copy.to, copy.from == nullptr ? value : copy.from, copy.bytes);
      }
      lock.lock();
      ++done;
    }
  }
  void add(const Copy& copy) {
    const std::lock_guard lock(mutex);
    copies.push_back(copy);
    ++issued;
    changed.notify_one();
  }
};

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
  int looks = 0;
};

int copy_now(Pointer to, Pointer from, size_t bytes) {
  for (size_t done = 0, take = 0; done < bytes; done += take) {
    take = std::min(measure_span(to + done, bytes - done), measure_span(from + done, bytes - done));
    uint8_t* target = resolve(to + done, take);
    const uint8_t* source = resolve(from + done, take);
    if (target == nullptr || source == nullptr) return kInvalidValue;
    copy_unwatched(target, source, take);
  }
  return kSuccess;
}

}  // namespace

namespace {

State* state = nullptr;
int state_fd = -1;

State* map_state(int fd) {
  void* const memory = mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<State*>(memory);
}

constexpr char kStateName[] = "fake-cuda-state";

void make_state() {
  state_fd = memfd_create(kStateName, MFD_CLOEXEC);
  if (ftruncate(state_fd, sizeof(State)) != 0) abort();
  state = new (map_state(state_fd)) State;
}

// A copier says whose it is in its command line, and has the state of that process.
State* find_parents_state() {
  char line[64] = {};
  const int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (read(fd, line, sizeof(line) - 1) <= 0) line[0] = 0;
  close(fd);
  int parent = 0;
  if (sscanf(line, "softverbs-copier for %d", &parent) != 1) return nullptr;
  const std::string folder = "/proc/" + std::to_string(parent) + "/fd/";
  DIR* const files = opendir(folder.c_str());
  State* found = nullptr;
  while (const dirent* file = files == nullptr ? nullptr : readdir(files)) {
    char target[64] = {};
    const std::string path = folder + file->d_name;
    if (readlink(path.c_str(), target, sizeof(target) - 1) < 0 || strstr(target, kStateName) == nullptr)
      continue;
    const int theirs = open(path.c_str(), O_RDWR | O_CLOEXEC);
    found = map_state(theirs);
    close(theirs);
  }
  if (files != nullptr) closedir(files);
  return found;
}

__attribute__((constructor)) void open_state() {
  state = find_parents_state();
  if (state != nullptr) return;
  make_state();
  pthread_atfork(nullptr, nullptr, [] {
    close(state_fd);
    make_state();
  });
}

// Writers wait for readers that have come, and readers for writers: as the driver's lock does.
std::shared_mutex driver_mutex;

}  // namespace

fake_cuda::State& fake_cuda::get_state() {
  return *state;
}

DriverLock::DriverLock() {
  driver_mutex.lock_shared();
}
DriverLock::~DriverLock() {
  driver_mutex.unlock_shared();
}

// A function of this stand-in. Acts like a thread of an application in a first launch of a kernel (lazy
// loading), a launch of a graph, or cuMemFree: it holds the lock until the kernels of the process have ended.
// The first two return at once, and what they have begun holds it.
API fakeBlockDriver(int returns_at_once) {
  std::atomic<bool> is_held{false};
  const auto hold = [](std::atomic<bool>* held) {
    const std::lock_guard lock(driver_mutex);
    if (held != nullptr) held->store(true);
    while (own_spinning.load() != 0) usleep(50);
  };
  if (returns_at_once == 0) {
    hold(nullptr);
    return kSuccess;
  }
  std::thread(hold, &is_held).detach();
  while (!is_held) usleep(50);
  return kSuccess;
}
API cuStreamCreateWithPriority(Stream** stream, unsigned, int) try {
  *stream = new Stream;
  return kSuccess;
} catch (const std::system_error&) {  // no thread
  return kOutOfMemory;
}
API cuEventCreate(Event** event, unsigned) {
  *event = new Event;
  return kSuccess;
}
API cuEventRecord(Event* event, Stream* stream) {
  const DriverLock driver;
  std::lock_guard lock(stream->mutex);
  event->stream = stream;
  event->count = stream->issued;
  event->looks = 0;
  return kSuccess;
}
// FAKE_CUDA_LATE_EVENTS: an event is seen 5 ms late.
API cuEventQuery(Event* event) {
  const DriverLock driver;
  static const bool is_late = getenv("FAKE_CUDA_LATE_EVENTS") != nullptr;
  if (is_late && event->looks++ == 0) usleep(5000);
  std::lock_guard lock(event->stream->mutex);
  return event->stream->done >= event->count ? kSuccess : kNotReady;
}
API cuStreamQuery(Stream* stream) {
  const DriverLock driver;
  std::lock_guard lock(stream->mutex);
  return stream->done >= stream->issued ? kSuccess : kNotReady;
}
// Of this stand-in: a test asks for refusals.
API fakeRefuseCopiesAfter(int copies) {
  get_state().copies_left.store(copies);
  return kSuccess;
}
// Copies that were asked for begin once they are not held any more.
API fakeHoldCopies(int is_held) {
  get_state().are_held.store(is_held != 0);
  return kSuccess;
}
static int add_copy(Pointer to, Pointer from, size_t bytes, Stream* stream, Shape shape) {
  if (!has_context()) return kInvalidContext;
  if (get_state().copies_left.fetch_sub(1) <= 0) return kInvalidValue;
  for (size_t done = 0, take = 0; done < bytes; done += take) {
    int to_gpu = kHost, from_gpu = kHost;
    take = std::min(measure_span(to + done, bytes - done), measure_span(from + done, bytes - done));
    uint8_t* target = resolve(to + done, take, &to_gpu);
    const uint8_t* source = resolve(from + done, take, &from_gpu);
    if (target == nullptr || source == nullptr) return kInvalidValue;
    const bool waits = is_hostile() && needs_sms(to_gpu, from_gpu, bytes, shape);
    stream->add({target, source, take, nullptr, 0, nullptr, waits ? get_context() : nullptr});
  }
  return kSuccess;
}
API cuMemcpyAsync(Pointer to, Pointer from, size_t bytes, Stream* stream) {
  const DriverLock driver;
  return add_copy(to, from, bytes, stream, Shape::kLine);
}
struct Rectangle {
  size_t from_x, from_y;
  int from_type;
  const void* from_host;
  Pointer from;
  void* from_array;
  size_t from_pitch;
  size_t to_x, to_y;
  int to_type;
  void* to_host;
  Pointer to;
  void* to_array;
  size_t to_pitch;
  size_t width, height;
};
static_assert(sizeof(Rectangle) == 128);
API cuMemcpy2DAsync_v2(const Rectangle* shape, Stream* stream) {
  constexpr int kUnified = 4;
  const DriverLock driver;
  if (shape->from_type != kUnified || shape->to_type != kUnified || shape->from_pitch < shape->width ||
      shape->to_pitch < shape->width)
    return kInvalidValue;
  for (size_t row = 0; row < shape->height; ++row) {
    const int error = add_copy(shape->to + row * shape->to_pitch, shape->from + row * shape->from_pitch,
                               shape->width, stream, shape->height > 1 ? Shape::kRows : Shape::kLine);
    if (error != kSuccess) return error;
  }
  return kSuccess;
}
// Of the variants of an operation, only the one that writes a word.
// FAKE_CUDA_OLD: a driver that has none.
API cuStreamBatchMemOp_v2(Stream* stream, unsigned count, const MemOperation* operations, unsigned) {
  constexpr int kWriteWord = 5;
  const DriverLock driver;
  static const bool is_old = getenv("FAKE_CUDA_OLD") != nullptr;
  if (is_old || get_state().copies_left.load() <= 0) return kInvalidValue;
  for (const MemOperation& operation : std::span(operations, count)) {
    const bool is_known = operation.operation == kWriteWord && operation.address % sizeof(uint64_t) == 0;
    uint8_t* const target = resolve(operation.address, sizeof(uint64_t));
    if (!has_context() || !is_known || target == nullptr) return kInvalidValue;
    stream->add({target, nullptr, sizeof(uint64_t), nullptr, operation.value});
  }
  return kSuccess;
}
// The last copy first, because callers must not rely on the order within a batch.
API cuMemcpyBatchAsync(Pointer* to, Pointer* from, size_t* bytes, size_t count, void*, size_t*, size_t,
                       size_t*, Stream* stream) {
  const DriverLock driver;
  for (size_t i = count; i-- > 0;) {
    if (const int error = add_copy(to[i], from[i], bytes[i], stream, Shape::kLine); error != kSuccess)
      return error;
  }
  return kSuccess;
}
API cuMemcpyHtoD_v2(Pointer to, const void* from, size_t bytes) {
  return copy_now(to, reinterpret_cast<Pointer>(from), bytes);
}
API cuMemcpyDtoH_v2(void* to, Pointer from, size_t bytes) {
  return copy_now(reinterpret_cast<Pointer>(to), from, bytes);
}
// A function of this stand-in. Starts a kernel of the current context that waits for a word of GPU memory, on
// a separate stream.
API fakeSpinUntil(Pointer word) {
  static auto* const stream = new Stream;
  const auto* const at = reinterpret_cast<const volatile uint64_t*>(resolve(word, sizeof(uint64_t)));
  if (!has_context() || at == nullptr) return kInvalidValue;
  const int before = own_spinning.load();
  stream->add({nullptr, nullptr, 0, nullptr, 0, new Spin{get_context(), at, nullptr, nullptr}});
  while (own_spinning.load() == before) usleep(50);
  return kSuccess;
}
// How many kernels of this process spin.
API fakeCountSpinning(int* count) {
  *count = own_spinning.load();
  return kSuccess;
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
  // The one kernel that the stand-in knows itself, and nobody has to run. Without it the copier tests no
  // forms, and takes those of its table: how busy this machine is does not count.
  if (has_context() && may_test_forms() && stream != nullptr && strcmp(function, "softverbs_spin") == 0) {
    const auto read = [&](int i) { return *static_cast<const Pointer*>(parameters[i]); };
    stream->add({nullptr, nullptr, 0, nullptr, 0,
                 new Spin{get_context(), nullptr, reinterpret_cast<const volatile uint32_t*>(read(0)),
                          reinterpret_cast<volatile uint32_t*>(read(1))}});
    return kSuccess;
  }
  const Launcher* const by = launcher.load();
  if (!has_context() || by == nullptr || stream == nullptr) return kInvalidValue;
  stream->add({nullptr, nullptr, 0, by->capture(function, blocks, threads, parameters)});
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
