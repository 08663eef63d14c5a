#include "gpu_memory.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

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
  void* context = nullptr;
  ASSERT_EQ(call("cuDevicePrimaryCtxRetain", &context, gpu), 0);
  ASSERT_EQ(call("cuCtxSetCurrent", context), 0);
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
    case Kind::kPrivate:
      return "private";
  }
  return "?";
}

int count_gpus() {
  int count = 0;
  if (call("cuInit", 0u) != 0 || call("cuDeviceGetCount", &count) != 0) return 0;
  return count;
}

bool has_gpu_somewhere() {
  const int pid = fork();
  if (pid == 0) _exit(count_gpus() > 0 ? 0 : 1);
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool refuse_copies_after(int copies) {
  return call("fakeRefuseCopiesAfter", copies) == 0;
}

bool hold_copies(bool is_held) {
  return call("fakeHoldCopies", static_cast<int>(is_held)) == 0;
}

CopyCalls count_copy_calls() {
  CopyCalls calls;
  if (call("fakeCountCalls", &calls.all, &calls.batches) != 0) return {};
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
    AllocationProperties properties{};
    properties.type = kPinnedAllocation;
    properties.handle_types = kind == Kind::kExportable ? kDescriptorHandle : 0;
    properties.location = {kOnDevice, gpu};
    size_t grain = 0;
    EXPECT_EQ(call("cuMemGetAllocationGranularity", &grain, &properties, 0), 0);
    mapped_bytes_ = (bytes + grain - 1) / grain * grain;
    EXPECT_EQ(call("cuMemCreate", &handle_, mapped_bytes_, &properties, 0ull), 0);
    EXPECT_EQ(call("cuMemAddressReserve", &pointer, mapped_bytes_, size_t{0}, Pointer{0}, 0ull), 0);
    EXPECT_EQ(call("cuMemMap", pointer, mapped_bytes_, size_t{0}, handle_, 0ull), 0);
    const AccessDescription access{{kOnDevice, gpu}, kReadWrite};
    EXPECT_EQ(call("cuMemSetAccess", pointer, mapped_bytes_, &access, size_t{1}), 0);
  }
  address_ = pointer;
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
    EXPECT_EQ(call("cuMemUnmap", Pointer{address_}, mapped_bytes_), 0);
    EXPECT_EQ(call("cuMemAddressFree", Pointer{address_}, mapped_bytes_), 0);
    EXPECT_EQ(call("cuMemRelease", handle_), 0);
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
