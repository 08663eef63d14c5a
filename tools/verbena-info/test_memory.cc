#include "verbena-info/test_memory.h"

#include <cstring>

#include "base/cuda_api.h"
#include "base/file_descriptor.h"
#include "common/error.h"
#include "common/gpu.h"

namespace verbena::tools::info {
namespace {

constexpr size_t kAlignmentBytes = 65536;  // of a dma-buf's range: a page of any machine

class HostMemory final : public TestMemory {
 public:
  explicit HostMemory(size_t length_bytes)
      : data_(static_cast<std::byte*>(std::aligned_alloc(kAlignmentBytes, length_bytes)), &std::free),
        length_bytes_(length_bytes) {
    if (data_ == nullptr) throw ToolError("no memory");
  }

  std::byte* address() const override { return data_.get(); }
  void* register_on(NetPlugin& plugin, void* comm, int) const override {
    return plugin.register_memory(comm, data_.get(), length_bytes_, abi::kPtrHost);
  }
  void write(size_t offset_bytes, std::span<const std::byte> bytes) override {
    std::memcpy(data_.get() + offset_bytes, bytes.data(), bytes.size());
  }
  void read(size_t offset_bytes, std::span<std::byte> bytes) override {
    std::memcpy(bytes.data(), data_.get() + offset_bytes, bytes.size());
  }

 private:
  std::unique_ptr<std::byte, decltype(&std::free)> data_;
  size_t length_bytes_;
};

const CudaDriver& find_driver() {
  std::string why;
  const CudaDriver* const driver = load_cuda_driver(why);
  if (driver == nullptr) throw ToolError(why);
  return *driver;
}

class GpuMemory final : public TestMemory {
 public:
  GpuMemory(int gpu, size_t length_bytes, double timeout_s)
      : gpu_(find_driver(), gpu),
        // Long allocations begin at a multiple of 2 MiB.
        start_(gpu_.allocate(length_bytes)),
        length_bytes_(length_bytes),
        timeout_s_(timeout_s) {}

  std::byte* address() const override { return reinterpret_cast<std::byte*>(start_); }

  // As NCCL does: by dma-buf where plugin and driver have it.
  void* register_on(NetPlugin& plugin, void* comm, int pointer_support) const override {
    const base::CudaApi* cuda = base::find_cuda();
    if ((pointer_support & abi::kPtrDmabuf) != 0 && cuda != nullptr && cuda->export_range != nullptr) {
      int raw = -1;
      if (cuda->export_range(&raw, start_, length_bytes_, base::kCudaExportDmabuf, 0) == base::kCudaSuccess) {
        const base::FileDescriptor descriptor(raw);
        return plugin.register_dmabuf(comm, address(), length_bytes_, descriptor.get());
      }
    }
    return plugin.register_memory(comm, address(), length_bytes_, abi::kPtrCuda);
  }
  void write(size_t offset_bytes, std::span<const std::byte> bytes) override {
    gpu_.write(start_ + offset_bytes, bytes.data(), bytes.size(), timeout_s_);
  }
  void read(size_t offset_bytes, std::span<std::byte> bytes) override {
    gpu_.read(bytes.data(), start_ + offset_bytes, bytes.size(), timeout_s_);
  }

 private:
  Gpu gpu_;
  CudaAddress start_;
  size_t length_bytes_;
  double timeout_s_;
};

}  // namespace

std::unique_ptr<TestMemory> allocate_memory(int gpu, size_t length_bytes, double timeout_s) {
  if (gpu == kHostMemory) return std::make_unique<HostMemory>(length_bytes);
  return std::make_unique<GpuMemory>(gpu, length_bytes, timeout_s);
}

}  // namespace verbena::tools::info
