// Words in GPU memory, which the CPU reads through CUDA's driver: that of a GPU, or the stand-in of the
// tests.
#pragma once

#include <cstddef>
#include <cstdint>

namespace verbena::nccl::testing {

class GpuWords {
 public:
  // On that GPU, modulo how many there are; all 0. Throws std::runtime_error where CUDA does not work.
  GpuWords(uint32_t gpu, size_t count);
  ~GpuWords();
  GpuWords(const GpuWords&) = delete;
  GpuWords& operator=(const GpuWords&) = delete;

  void* address() const;
  // Only on the thread that made them, where the GPU's context is current.
  uint64_t read(size_t index) const;

 private:
  unsigned long long address_ = 0;
};

}  // namespace verbena::nccl::testing
