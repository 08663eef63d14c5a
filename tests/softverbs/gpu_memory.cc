#include "gpu_memory.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// A function of the drop-in; null in a library that is older than the copier, which the bench compares with.
extern "C" __attribute__((weak)) size_t softverbs_describe_copier(char* text, size_t bytes);

namespace verbena::softverbs_test {
namespace {

using Pointer = unsigned long long;

struct Location {
  int type, id;
};
struct AllocationProperties {
  int type;
  int handle_types;
  Location location;
  void* windows;
  uint8_t flags[8];
};
struct AccessDescription {
  Location location;
  int flags;
};
constexpr int kPinnedAllocation = 1, kOnDevice = 1, kDescriptorHandle = 1, kReadWrite = 3;
constexpr unsigned kPortableAndMapped = 3;

// Calls a function of the driver by name; each test process loads the driver once.
template <typename... Arguments>
int call(const char* name, Arguments... arguments) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) return -1;
  auto* function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name));
  return function == nullptr ? -1 : function(arguments...);
}

void enter_gpu(int gpu) {
  start_cuda();
  void* context = nullptr;
  ASSERT_EQ(call("cuDevicePrimaryCtxRetain", &context, gpu), 0);
  ASSERT_EQ(call("cuCtxSetCurrent", context), 0);
}

AllocationProperties make_properties(Kind kind, int gpu) {
  AllocationProperties properties{};
  properties.type = kPinnedAllocation;
  properties.handle_types = kind == Kind::kPrivate ? 0 : kDescriptorHandle;
  properties.location = {kOnDevice, gpu};
  return properties;
}

uint8_t make_byte(uint8_t seed, size_t index) {
  return static_cast<uint8_t>(seed + index * 7 + (index >> 8) * 13);
}

}  // namespace

const char* get_name(Kind kind) {
  switch (kind) {
    case Kind::kPageable:
      return "pageable";
    case Kind::kPinned:
      return "pinned";
    case Kind::kDevice:
      return "device";
    case Kind::kExportable:
      return "exportable";
    case Kind::kPieced:
      return "pieced";
    case Kind::kPrivate:
      return "private";
  }
  return "?";
}

namespace {

bool is_started = false;

int count_here() {
  int count = 0;
  return call("cuDeviceGetCount", &count) == 0 ? count : 0;
}

int count_in_a_child() {
  const int pid = fork();
  if (pid == 0) _exit(call("cuInit", 0u) == 0 ? count_here() : 0);
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

}  // namespace

void start_cuda() {
  ASSERT_EQ(call("cuInit", 0u), 0) << "no CUDA, or this process is a child of one that has started CUDA";
  is_started = true;
}

int count_gpus() {
  if (is_started) return count_here();
  static const int count = count_in_a_child();
  return count;
}

bool refuse_copies_after(int copies) {
  return call("fakeRefuseCopiesAfter", copies) == 0;
}

bool hold_copies(bool is_held) {
  return call("fakeHoldCopies", static_cast<int>(is_held)) == 0;
}

namespace {

// Kernels of these tests for a real driver: one that waits for a word, and any number of others, each of
// another name, so that the driver has not loaded it yet.
constexpr char kWaitKernel[] = R"(
.version 6.3
.target sm_70
.address_size 64
.visible .entry wait_for_word(.param .u64 word, .param .u64 limit_ns)
{
  .reg .pred %p<3>;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd1, [word];
  ld.param.u64 %rd2, [limit_ns];
  mov.u64 %rd3, %globaltimer;
again:
  ld.volatile.global.u64 %rd4, [%rd1];
  setp.ne.u64 %p1, %rd4, 0;
  @%p1 bra done;
  mov.u64 %rd5, %globaltimer;
  sub.u64 %rd6, %rd5, %rd3;
  setp.lt.u64 %p2, %rd6, %rd2;
  @%p2 bra again;
done:
  ret;
}
)";

std::string make_empty_kernel(const std::string& name) {
  return ".version 6.3\n.target sm_70\n.address_size 64\n.visible .entry " + name + "()\n{\n  ret;\n}\n";
}

bool has_stand_in() {
  int count = 0;
  return call("fakeCountSpinning", &count) == 0;
}

void* spin_stream = nullptr;

void* make_stream() {
  constexpr unsigned kNonBlocking = 1;
  void* stream = nullptr;
  EXPECT_EQ(call("cuStreamCreate", &stream, kNonBlocking), 0);
  return stream;
}

void* load_kernel(const std::string& text, const char* name, void** module = nullptr) {
  void *loaded = nullptr, *function = nullptr;
  EXPECT_EQ(call("cuModuleLoadDataEx", &loaded, static_cast<const void*>(text.c_str()), 0u,
                 static_cast<int*>(nullptr), static_cast<void**>(nullptr)),
            0);
  if (module != nullptr) {
    *module = loaded;
  } else {
    EXPECT_EQ(call("cuModuleGetFunction", &function, loaded, name), 0);
  }
  return function;
}

int launch(void* function, void* stream, void** parameters) {
  return call("cuLaunchKernel", function, 1u, 1u, 1u, 1u, 1u, 1u, 0u, stream, parameters,
              static_cast<void**>(nullptr));
}

bool spin_on_real_gpu(uint64_t word) {
  static void* function = load_kernel(kWaitKernel, "wait_for_word");
  if (spin_stream == nullptr) spin_stream = make_stream();
  uint64_t limit_ns = 60'000'000'000;
  void* parameters[] = {&word, &limit_ns};
  return launch(function, spin_stream, parameters) == 0;
}

// Objects that prepare_blocker() leaves for run_blocker().
struct Prepared {
  std::string name;
  void* module = nullptr;
  void *graph = nullptr, *stream = nullptr;
  Pointer memory = 0;
  std::vector<uint8_t> host;
} prepared;
constexpr size_t kBlockerBytes = 1 << 20;

}  // namespace

bool spin_until(int gpu, uint64_t word) {
  enter_gpu(gpu);
  return has_stand_in() ? call("fakeSpinUntil", Pointer{word}) == 0 : spin_on_real_gpu(word);
}

bool is_spinning() {
  int count = 0;
  if (has_stand_in()) {
    call("fakeCountSpinning", &count);
    return count != 0;
  }
  return call("cuStreamQuery", spin_stream) != 0;
}

const char* get_name(Blocker blocker) {
  constexpr const char* kNames[] = {"nothing",
                                    "first launch of a kernel",
                                    "graph behind the kernel",
                                    "cuMemFree",
                                    "synchronize",
                                    "pageable copy",
                                    "cuMemAlloc",
                                    "cuMemHostRegister"};
  return kNames[static_cast<size_t>(blocker)];
}

void prepare_blocker(int gpu, Blocker blocker) {
  if (has_stand_in()) return;
  enter_gpu(gpu);
  static int count = 0;
  prepared.name = "empty" + std::to_string(++count);
  prepared.stream = make_stream();
  prepared.host.assign(kBlockerBytes, 1);
  const std::string text = make_empty_kernel(prepared.name);
  if (blocker == Blocker::kFirstLaunch) load_kernel(text, prepared.name.c_str(), &prepared.module);
  if (blocker == Blocker::kFree || blocker == Blocker::kPageableCopy) {
    EXPECT_EQ(call("cuMemAlloc_v2", &prepared.memory, kBlockerBytes), 0);
  }
  if (blocker != Blocker::kGraph) return;
  constexpr int kRelaxed = 2;
  void* const function = load_kernel(text, prepared.name.c_str());
  EXPECT_EQ(call("cuStreamBeginCapture_v2", prepared.stream, kRelaxed), 0);
  EXPECT_EQ(launch(function, prepared.stream, nullptr), 0);
  EXPECT_EQ(call("cuStreamEndCapture", prepared.stream, &prepared.graph), 0);
}

namespace {

// The stand-in only knows which of them hold the driver's lock until the kernels end, and which of those
// return.
void run_on_stand_in(Blocker blocker) {
  const bool is_begun = blocker == Blocker::kFirstLaunch || blocker == Blocker::kGraph;
  if (is_begun || blocker == Blocker::kFree) call("fakeBlockDriver", static_cast<int>(is_begun));
}

}  // namespace

void run_blocker(int gpu, Blocker blocker) {
  if (has_stand_in()) return run_on_stand_in(blocker);
  enter_gpu(gpu);
  void *function = nullptr, *executable = nullptr;
  Pointer fresh = 0;
  switch (blocker) {
    case Blocker::kNothing:
      break;
    case Blocker::kFirstLaunch:
      EXPECT_EQ(call("cuModuleGetFunction", &function, prepared.module, prepared.name.c_str()), 0);
      EXPECT_EQ(launch(function, prepared.stream, nullptr), 0);
      break;
    case Blocker::kGraph:
      EXPECT_EQ(call("cuGraphInstantiateWithFlags", &executable, prepared.graph, 0ull), 0);
      EXPECT_EQ(call("cuGraphLaunch", executable, spin_stream), 0);
      break;
    case Blocker::kFree:
      EXPECT_EQ(call("cuMemFree_v2", prepared.memory), 0);
      break;
    case Blocker::kSynchronize:
      EXPECT_EQ(call("cuCtxSynchronize"), 0);
      break;
    case Blocker::kPageableCopy:
      EXPECT_EQ(call("cuMemcpyHtoDAsync_v2", prepared.memory, static_cast<const void*>(prepared.host.data()),
                     kBlockerBytes, prepared.stream),
                0);
      break;
    case Blocker::kAllocate:
      EXPECT_EQ(call("cuMemAlloc_v2", &fresh, kBlockerBytes), 0);
      break;
    case Blocker::kRegister:
      EXPECT_EQ(call("cuMemHostRegister_v2", static_cast<void*>(prepared.host.data()), kBlockerBytes, 0u), 0);
      EXPECT_EQ(call("cuMemHostUnregister", static_cast<void*>(prepared.host.data())), 0);
      break;
  }
}

std::string describe_copier() {
  if (softverbs_describe_copier == nullptr) return {};
  std::string text(16384, '\0');
  text.resize(std::min(softverbs_describe_copier(text.data(), text.size()), text.size() - 1));
  return text;
}

int find_copier() {
  int pid = 0;
  const std::string text = describe_copier();
  const int found = sscanf(text.c_str(), "copies: %*d, in groups: %*d; by process %d", &pid);
  EXPECT_TRUE(text.empty() || found == 1) << text;
  return pid;
}

CopyCalls count_copy_calls() {
  CopyCalls calls;
  const std::string text = describe_copier();
  const int found = sscanf(text.c_str(), "copies: %d, in groups: %d", &calls.all, &calls.batches);
  EXPECT_TRUE(text.empty() || found == 2) << text;
  return calls;
}

TestMemory::TestMemory(Kind kind, int gpu, size_t bytes) : kind_(kind), gpu_(gpu), bytes_(bytes) {
  if (kind == Kind::kPageable) {
    address_ = reinterpret_cast<uint64_t>(malloc(bytes));
    return;
  }
  enter_gpu(gpu);
  if (kind == Kind::kPinned) {
    void* pointer = nullptr;
    EXPECT_EQ(call("cuMemHostAlloc", &pointer, bytes, kPortableAndMapped), 0);
    address_ = reinterpret_cast<uint64_t>(pointer);
    return;
  }
  Pointer pointer = 0;
  if (kind == Kind::kDevice) {
    EXPECT_EQ(call("cuMemAlloc_v2", &pointer, bytes), 0);
  } else {
    const AllocationProperties properties = make_properties(kind, gpu);
    size_t grain = 0;
    EXPECT_EQ(call("cuMemGetAllocationGranularity", &grain, &properties, 0), 0);
    mapped_bytes_ = (bytes + grain - 1) / grain * grain;
    EXPECT_EQ(call("cuMemAddressReserve", &pointer, mapped_bytes_, size_t{0}, Pointer{0}, 0ull), 0);
    address_ = pointer;
    const size_t piece = kind == Kind::kPieced ? grain : mapped_bytes_;
    for (size_t offset = 0; offset < mapped_bytes_; offset += piece) map_piece(offset, piece);
  }
  address_ = pointer;
}

void TestMemory::map_piece(size_t offset, size_t bytes) {
  const AllocationProperties properties = make_properties(kind_, gpu_);
  EXPECT_EQ(call("cuMemCreate", &handles_.emplace_back(), bytes, &properties, 0ull), 0);
  EXPECT_EQ(call("cuMemMap", Pointer{address_ + offset}, bytes, size_t{0}, handles_.back(), 0ull), 0);
  const AccessDescription access{{kOnDevice, gpu_}, kReadWrite};
  EXPECT_EQ(call("cuMemSetAccess", Pointer{address_ + offset}, bytes, &access, size_t{1}), 0);
}

TestMemory::~TestMemory() {
  if (kind_ == Kind::kPageable) {
    ::free(reinterpret_cast<void*>(address_));
    return;
  }
  enter_gpu(gpu_);
  if (kind_ == Kind::kPinned) {
    EXPECT_EQ(call("cuMemFreeHost", reinterpret_cast<void*>(address_)), 0);
  } else if (kind_ == Kind::kDevice) {
    EXPECT_EQ(call("cuMemFree_v2", Pointer{address_}), 0);
  } else {
    const size_t piece = mapped_bytes_ / handles_.size();
    for (size_t i = 0; i < handles_.size(); ++i) {
      EXPECT_EQ(call("cuMemUnmap", Pointer{address_ + i * piece}, piece), 0);
      EXPECT_EQ(call("cuMemRelease", handles_[i]), 0);
    }
    EXPECT_EQ(call("cuMemAddressFree", Pointer{address_}, mapped_bytes_), 0);
  }
}

void TestMemory::write(const std::vector<uint8_t>& data) {
  if (!is_on_gpu(kind_)) {
    memcpy(reinterpret_cast<void*>(address_), data.data(), data.size());
    return;
  }
  enter_gpu(gpu_);
  ASSERT_EQ(call("cuMemcpyHtoD_v2", Pointer{address_}, static_cast<const void*>(data.data()), data.size()),
            0);
  ASSERT_EQ(call("cuCtxSynchronize"), 0);
}

void TestMemory::fill(uint8_t seed, size_t most_bytes) {
  std::vector<uint8_t> data(std::min(bytes_, most_bytes));
  for (size_t i = 0; i < data.size(); ++i) data[i] = make_byte(seed, i);
  write(data);
}

void TestMemory::clear(size_t most_bytes) {
  write(std::vector<uint8_t>(std::min(bytes_, most_bytes)));
}

std::vector<uint8_t> TestMemory::read(size_t offset, size_t bytes) const {
  std::vector<uint8_t> data(bytes);
  if (!is_on_gpu(kind_)) {
    memcpy(data.data(), reinterpret_cast<const void*>(address_ + offset), bytes);
  } else {
    enter_gpu(gpu_);
    EXPECT_EQ(call("cuMemcpyDtoH_v2", static_cast<void*>(data.data()), Pointer{address_ + offset}, bytes), 0);
  }
  return data;
}

uint64_t TestMemory::read_word(size_t offset) const {
  uint64_t word = 0;
  memcpy(&word, read(offset, sizeof(word)).data(), sizeof(word));
  return word;
}

bool TestMemory::matches(uint8_t seed, size_t offset, size_t bytes) const {
  if (bytes == 0) return true;
  const std::vector<uint8_t> data = read(offset, bytes);
  for (size_t i = 0; i < bytes; ++i) {
    if (data[i] != make_byte(seed, offset + i)) return false;
  }
  return true;
}

bool TestMemory::holds_only(uint8_t seed) const {
  const std::vector<uint8_t> data = read(0, bytes_);
  for (size_t i = 0; i < bytes_; ++i) {
    if (data[i] != 0 && data[i] != make_byte(seed, i)) return false;
  }
  return true;
}

}  // namespace verbena::softverbs_test
