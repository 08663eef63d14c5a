#include "softverbs/copier/ways.h"

#include <sched.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "softverbs/shared/clock.h"

namespace verbena::softverbs::copier {
namespace {

// One block that polls a word of host memory until it is set, or until it has run for `limit_ns`.
constexpr char kSpinKernel[] = R"(
.version 6.3
.target sm_70
.address_size 64
.visible .entry softverbs_spin(.param .u64 end, .param .u64 begun, .param .u64 limit_ns)
{
  .reg .pred %p<3>;
  .reg .b32 %r<3>;
  .reg .b64 %rd<7>;
  ld.param.u64 %rd1, [end];
  ld.param.u64 %rd2, [begun];
  ld.param.u64 %rd3, [limit_ns];
  mov.u64 %rd4, %globaltimer;
  mov.u32 %r1, 1;
  st.volatile.global.u32 [%rd2], %r1;
again:
  ld.volatile.global.u32 %r2, [%rd1];
  setp.ne.u32 %p1, %r2, 0;
  @%p1 bra done;
  mov.u64 %rd5, %globaltimer;
  sub.u64 %rd6, %rd5, %rd4;
  setp.lt.u64 %p2, %rd6, %rd3;
  @%p2 bra again;
done:
  ret;
}
)";

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kMaxTestNs = 1000 * kMs;
constexpr uint64_t kSpinLimitNs = 2000 * kMs;
// A time slice is about 2.4 ms. A copy that takes longer than kWaitNs must have waited for a time slice.
// After kMostNs the test stops waiting for the copy.
constexpr uint64_t kWaitNs = kMs / 2, kMostNs = 5 * kMs;
// Another form is used only if it takes at most this fraction of the plain form's time.
constexpr double kGain = 0.7;
constexpr uint64_t kDrainNs = 1000 * kMs;
constexpr uint64_t kTestBytes = 1 << 20, kOtherBytes = 2 << 20;

// The kernel that spins, in a second context of the same GPU.
class Spinner {
 public:
  Spinner(const Driver& driver, CUcontext ours) : driver_(driver), ours_(ours) {}
  ~Spinner() { close(); }
  Spinner(const Spinner&) = delete;
  Spinner& operator=(const Spinner&) = delete;

  // Both functions leave the self-test's context current. Return false, with the reason in `why`, on failure.
  bool open(CUdevice device, std::string& why);
  bool begin(std::string& why);
  void end() { words_[kEnd] = 1; }

 private:
  enum Word { kEnd, kBegun };
  bool prepare(std::string& why);
  bool launch(std::string& why);
  void close();

  const Driver& driver_;
  const CUcontext ours_;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  CUfunction kernel_ = nullptr;
  volatile uint32_t* words_ = nullptr;
  CUdeviceptr words_there_ = 0;
};

bool Spinner::open(CUdevice device, std::string& why) {
  if (driver_.cuLaunchKernel == nullptr) {
    why = "the driver cannot run kernels";
    return false;
  }
  const CUresult result = driver_.cuCtxCreate_v2(&context_, 0, device);
  if (result != CUDA_SUCCESS) {
    context_ = nullptr;
    why = driver_.explain("cuCtxCreate", result);
  }
  const bool is_ready = result == CUDA_SUCCESS && prepare(why);
  driver_.cuCtxSetCurrent(ours_);
  return is_ready;
}

bool Spinner::prepare(std::string& why) {
  constexpr unsigned kFlags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
  void* memory = nullptr;
  CUmodule module = nullptr;
  const std::pair<const char*, std::function<CUresult()>> steps[] = {
      {"cuMemHostAlloc", [&] { return driver_.cuMemHostAlloc(&memory, 4096, kFlags); }},
      {"cuMemHostGetDevicePointer",
       [&] { return driver_.cuMemHostGetDevicePointer_v2(&words_there_, memory, 0); }},
      {"cuStreamCreateWithPriority",
       [&] { return driver_.cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0); }},
      {"cuModuleLoadData",
       [&] { return driver_.cuModuleLoadDataEx(&module, kSpinKernel, 0, nullptr, nullptr); }},
      {"cuModuleGetFunction",
       [&] { return driver_.cuModuleGetFunction(&kernel_, module, "softverbs_spin"); }}};
  for (const auto& [call, step] : steps) {
    const CUresult result = step();
    if (result == CUDA_SUCCESS) continue;
    why = driver_.explain(call, result);
    return false;
  }
  words_ = static_cast<volatile uint32_t*>(memory);
  return true;
}

bool Spinner::launch(std::string& why) {
  CUdeviceptr end = words_there_ + kEnd * sizeof(uint32_t), begun = words_there_ + kBegun * sizeof(uint32_t);
  uint64_t limit_ns = kSpinLimitNs;
  void* parameters[] = {&end, &begun, &limit_ns};
  const CUresult result = driver_.cuLaunchKernel(kernel_, 1, 1, 1, 1, 1, 1, 0, stream_, parameters, nullptr);
  if (result != CUDA_SUCCESS) why = driver_.explain("cuLaunchKernel", result);
  return result == CUDA_SUCCESS;
}

bool Spinner::begin(std::string& why) {
  words_[kEnd] = 0;
  words_[kBegun] = 0;
  driver_.cuCtxSetCurrent(context_);
  const bool is_launched = launch(why);
  driver_.cuCtxSetCurrent(ours_);
  if (!is_launched) return false;
  const uint64_t deadline_ns = read_clock_ns() + kDrainNs;
  while (words_[kBegun] == 0) {
    if (read_clock_ns() > deadline_ns) {
      why = "the kernel did not begin";
      return false;
    }
    sched_yield();
  }
  return true;
}

void Spinner::close() {
  if (words_ != nullptr) end();
  if (context_ != nullptr) driver_.cuCtxDestroy_v2(context_);
  driver_.cuCtxSetCurrent(ours_);
}

struct Memory {
  CUdeviceptr host = 0, gpu = 0, other = 0;  // `other` is memory of another GPU
};

class SelfTest {
 public:
  SelfTest(const Driver& driver, CUcontext context, CUdevice device, std::string& report)
      : driver_(driver), device_(device), report_(report), stream_(driver), spinner_(driver, context) {}
  ~SelfTest();
  SelfTest(const SelfTest&) = delete;
  SelfTest& operator=(const SelfTest&) = delete;
  void run(Ways& ways);

 private:
  struct Time {
    double us = 0;
    bool waits = false;
  };
  bool prepare(std::string& why);
  bool allocate(std::string& why);
  void allocate_other();
  void measure_path(Path path, Ways& ways);
  void measure_words(Ways& ways);
  void measure_fences(Ways& ways);
  std::optional<Time> measure(const std::function<CUresult()>& issue);
  std::optional<Time> measure_class(Path path, size_t length_class, Form form, const Ways& ways);
  CUresult issue(Path path, Form form, uint64_t bytes, const Ways& ways);
  enum class End { kDone, kLate, kFailed };
  End wait(uint64_t begin_ns, uint64_t most_ns);
  std::optional<double> sample(const std::function<CUresult()>& issue);
  std::pair<CUdeviceptr, CUdeviceptr> find_ends(Path path) const;
  void say(const char* format, ...) __attribute__((format(printf, 2, 3)));
  void say_time(const std::optional<Time>& time);

  const Driver& driver_;
  const CUdevice device_;
  std::string& report_;
  CopyStream stream_;
  Spinner spinner_;
  CUevent event_ = nullptr;
  Memory memory_;
  volatile uint64_t* told_ = nullptr;  // null: completion is detected by an event
  uint64_t told_count_ = 0;
  uint64_t deadline_ns_ = 0;
};

void SelfTest::say(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  report_ += text;
}

bool SelfTest::prepare(std::string& why) {
  if (!stream_.open(why)) return false;
  CUresult result = driver_.cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING);
  if (result != CUDA_SUCCESS) {
    why = driver_.explain("cuEventCreate", result);
    return false;
  }
  if (!allocate(why)) return false;
  allocate_other();
  return spinner_.open(device_, why) && spinner_.begin(why);
}

// Allocates 2 MiB of GPU memory and of host memory, until the process ends.
bool SelfTest::allocate(std::string& why) {
  void* host = nullptr;
  CUresult result =
      driver_.cuMemHostAlloc(&host, 2 * kTestBytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
  const char* call = "cuMemHostAlloc";
  memory_.host = reinterpret_cast<uint64_t>(host);
  if (result == CUDA_SUCCESS) {
    call = "cuMemAlloc";
    result = driver_.cuMemAlloc_v2(&memory_.gpu, 2 * kTestBytes);
  }
  if (result != CUDA_SUCCESS) why = driver_.explain(call, result);
  return result == CUDA_SUCCESS;
}

// Allocates memory of the next GPU that this GPU can access, and maps it without a context on that GPU.
void SelfTest::allocate_other() {
  int count = 0;
  if (driver_.cuMemImportFromShareableHandle == nullptr || driver_.cuDeviceGetCount(&count) != CUDA_SUCCESS)
    return;
  for (int i = 1; i < count; ++i) {
    CUdevice other = 0;
    if (driver_.cuDeviceGet(&other, (device_ + i) % count) != CUDA_SUCCESS) continue;
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, other};
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr base = 0;
    if (driver_.cuMemCreate(&handle, kOtherBytes, &properties, 0) != CUDA_SUCCESS) continue;
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device_}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const bool is_mapped = driver_.cuMemAddressReserve(&base, kOtherBytes, 0, 0, 0) == CUDA_SUCCESS &&
                           driver_.cuMemMap(base, kOtherBytes, 0, handle, 0) == CUDA_SUCCESS &&
                           driver_.cuMemSetAccess(base, kOtherBytes, &access, 1) == CUDA_SUCCESS;
    driver_.cuMemRelease(handle);
    if (!is_mapped) continue;
    memory_.other = base;
    return;
  }
}

SelfTest::~SelfTest() {
  if (memory_.other == 0) return;
  driver_.cuMemUnmap(memory_.other, kOtherBytes);
  driver_.cuMemAddressFree(memory_.other, kOtherBytes);
}

std::pair<CUdeviceptr, CUdeviceptr> SelfTest::find_ends(Path path) const {
  switch (path) {
    case Path::kToHost:
      return {memory_.host, memory_.gpu};
    case Path::kToGpu:
      return {memory_.gpu, memory_.host};
    case Path::kWithin:
      return {memory_.gpu, memory_.gpu + kTestBytes};
    case Path::kPeer:
      break;
  }
  return {memory_.other, memory_.gpu};
}

CUresult SelfTest::issue(Path path, Form form, uint64_t bytes, const Ways& ways) {
  const auto [to, from] = find_ends(path);
  if (form != Form::kThroughHost) return stream_.copy(form, to, from, bytes);
  const CUdeviceptr middle = memory_.host + kTestBytes;
  const CUresult result = stream_.copy(ways.choose(Path::kToHost, bytes), middle, from, bytes);
  return result != CUDA_SUCCESS ? result : stream_.copy(ways.choose(Path::kToGpu, bytes), to, middle, bytes);
}

SelfTest::End SelfTest::wait(uint64_t begin_ns, uint64_t most_ns) {
  for (;;) {
    const CUresult result = told_ == nullptr        ? driver_.cuEventQuery(event_)
                            : *told_ == told_count_ ? CUDA_SUCCESS
                                                    : CUDA_ERROR_NOT_READY;
    if (result == CUDA_SUCCESS) return End::kDone;
    if (result != CUDA_ERROR_NOT_READY) return End::kFailed;
    if (read_clock_ns() - begin_ns > most_ns) return End::kLate;
  }
}

// Returns microseconds, or nothing if the driver rejects the copy. If a copy does not end in time, first ends
// the kernel that blocks it.
std::optional<double> SelfTest::sample(const std::function<CUresult()>& issue) {
  const uint64_t begin_ns = read_clock_ns();
  if (issue() != CUDA_SUCCESS) return std::nullopt;
  const WordAt word{reinterpret_cast<uint64_t>(told_), ++told_count_};
  const CUresult fence = told_ == nullptr ? stream_.record(event_) : stream_.store({&word, 1});
  if (fence != CUDA_SUCCESS) return std::nullopt;
  End end = wait(begin_ns, kMostNs);
  const uint64_t took_ns = read_clock_ns() - begin_ns;
  if (end == End::kLate) {
    spinner_.end();
    end = wait(read_clock_ns(), kDrainNs);
    std::string why;
    if (end == End::kDone && !spinner_.begin(why)) end = End::kFailed;
  }
  if (end != End::kDone) deadline_ns_ = 0;  // no further form is measured
  return end == End::kDone ? std::optional(static_cast<double>(took_ns) / 1000) : std::nullopt;
}

std::optional<SelfTest::Time> SelfTest::measure(const std::function<CUresult()>& issue) {
  constexpr int kSamples = 3, kMaxSamples = 5;
  // Uses the shortest time, because the first use of a form, or another load on the CPU, may take longer.
  double shortest_us = std::numeric_limits<double>::max();
  for (int i = 0; i < kSamples || (i < kMaxSamples && shortest_us * 1000 > kWaitNs); ++i) {
    if (read_clock_ns() > deadline_ns_) return std::nullopt;
    const std::optional<double> us = sample(issue);
    if (!us) return std::nullopt;
    shortest_us = std::min(shortest_us, *us);
  }
  return Time{shortest_us, shortest_us * 1000 > kWaitNs};
}

// Measures the shortest and the longest length of the class.
std::optional<SelfTest::Time> SelfTest::measure_class(Path path, size_t length_class, Form form,
                                                      const Ways& ways) {
  const uint64_t shortest = length_class == 0 ? 64 : Ways::kClassBegins[length_class];
  const uint64_t longest =
      length_class + 1 == Ways::kClassCount ? kTestBytes : Ways::kClassBegins[length_class + 1] - 4;
  Time sum;
  for (const uint64_t bytes : {shortest, longest}) {
    const std::optional<Time> time = measure([&] { return issue(path, form, bytes, ways); });
    if (!time) return std::nullopt;
    sum.us += time->us;
    sum.waits |= time->waits;
    if (sum.waits) break;
  }
  return sum;
}

void SelfTest::say_time(const std::optional<Time>& time) {
  if (!time) return say(" refused");
  say(time->waits ? " WAITS %.0f us" : " %.1f us", time->us);
}

void SelfTest::measure_path(Path path, Ways& ways) {
  if (path == Path::kPeer && memory_.other == 0)
    return say("%s: not measured, because this GPU cannot access another GPU\n", kPathNames[3]);
  const bool is_between_gpus = path == Path::kWithin || path == Path::kPeer;
  std::vector<Form> candidates = {Form::kPlain, Form::kRows};
  if (is_between_gpus) candidates.push_back(Form::kThroughHost);
  for (size_t length_class = 0; length_class < Ways::kClassCount; ++length_class) {
    say("%s from %llu B:", kPathNames[static_cast<size_t>(path)],
        static_cast<unsigned long long>(Ways::kClassBegins[length_class]));
    std::optional<Time> best;
    Form best_form = Form::kPlain;
    for (const Form form : candidates) {
      const std::optional<Time> time = measure_class(path, length_class, form, ways);
      say(" %s", kFormNames[static_cast<size_t>(form)]);
      say_time(time);
      if (!time || (best && time->us >= kGain * best->us)) continue;
      // Plain copies can be batched, so another form must also be faster than a second measurement of the
      // plain form.
      if (best && !best->waits && best_form == Form::kPlain) {
        const std::optional<Time> again = measure_class(path, length_class, Form::kPlain, ways);
        if (again && time->us >= kGain * again->us) continue;
      }
      best = time;
      best_form = form;
    }
    const bool is_known = best && !best->waits;
    if (is_known) ways.set(path, length_class, best_form);
    say(is_known ? "; using %s\n" : "; every method had to wait; using %s\n",
        kFormNames[static_cast<size_t>(ways.choose(path, Ways::kClassBegins[length_class]))]);
  }
}

void SelfTest::measure_words(Ways& ways) {
  if (!stream_.has_stores())
    return say("words: not available, because the driver cannot write memory words from a stream\n");
  const auto store = [&](Form form) {
    return measure([&] { return stream_.copy(form, memory_.gpu, memory_.host, kMaxWordsBytes); });
  };
  const std::optional<Time> words = store(Form::kWords);
  const std::optional<Time> copy = store(ways.choose(Path::kToGpu, kMaxWordsBytes));
  ways.stores_words = words && (!copy || words->us < copy->us);
  say("words to the GPU: stored");
  say_time(words);
  say(" copied");
  say_time(copy);
  say("; using %s\n", ways.stores_words ? "stored" : "copied");
}

void SelfTest::measure_fences(Ways& ways) {
  if (!stream_.has_stores()) return;
  const auto copy = [&] { return measure([&] { return issue(Path::kToHost, Form::kPlain, 64, ways); }); };
  const std::optional<Time> by_event = copy();
  // Host memory that the driver allocated has the same address for the CPU and the GPU.
  told_ = reinterpret_cast<volatile uint64_t*>(memory_.host + kTestBytes - 64);
  told_count_ = 0;
  *told_ = 0;
  const std::optional<Time> by_stream = copy();
  told_ = nullptr;
  ways.tells_by_stream = by_event && by_stream && by_stream->us < by_event->us;
  say("the end of a copy: event");
  say_time(by_event);
  say(" stored word");
  say_time(by_stream);
  say("; using the %s\n", ways.tells_by_stream ? "stored word" : "event");
}

void SelfTest::run(Ways& ways) {
  const uint64_t begin_ns = read_clock_ns();
  deadline_ns_ = begin_ns + kMaxTestNs;
  std::string why;
  if (!prepare(why)) return say("copy methods: as measured on H100s, without a self-test: %s\n", why.c_str());
  for (const Path path : {Path::kToHost, Path::kToGpu, Path::kWithin, Path::kPeer}) measure_path(path, ways);
  measure_words(ways);
  measure_fences(ways);
  say("self-test: %.0f ms\n", static_cast<double>(read_clock_ns() - begin_ns) / 1e6);
}

}  // namespace

size_t Ways::find_class(uint64_t bytes) {
  size_t found = kClassCount - 1;
  while (found > 0 && bytes < kClassBegins[found]) --found;
  return found;
}

Ways measure_ways(const Driver& driver, CUcontext context, CUdevice device, std::string& report) {
  Ways ways;
  SelfTest(driver, context, device, report).run(ways);
  driver.cuCtxSetCurrent(context);
  return ways;
}

}  // namespace verbena::softverbs::copier
