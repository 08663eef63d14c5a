#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/gpu.h"
#include "verbena-bench/unpack/unpack_run.h"

namespace verbena::tools::unpack {

// The code that moves the bytes: Verbena's two variants, NCCL's code, and the plain copy for comparison.
enum class Mover : uint8_t { kRegisters, kBulk, kNccl, kCopy };

const char* describe_mover(Mover mover);

struct LaunchShape {
  uint32_t blocks = 0;
  uint32_t threads = 0;
  uint32_t stages = 0;  // per warp, for kBulk; reduced to what fits
};

// The kernels on one GPU. Launches are asynchronous.
class KernelSet {
 public:
  explicit KernelSet(Gpu& gpu);

  // Adds NCCL's kernel.
  void add_nccl(const std::string& image);

  bool has(Mover mover) const;
  std::vector<Mover> list_movers() const;

  // `bad_counts` is a 32-bit word to which the number of refused slots is added.
  void launch(Mover mover, const UnpackRun& run, const LaunchShape& shape, CUdeviceptr bad_counts);
  void launch_latency(Mover mover, const LatencyRun& latency, const LaunchShape& shape);
  // Unpacks the next receive of the connection with this handle; stores the number of its descriptors in
  // `placed`.
  void launch_receive(CUdeviceptr handle, CUdeviceptr data, CUdeviceptr placed, uint32_t threads);
  void fill_words(CUdeviceptr target, uint64_t length_bytes, uint64_t word);
  void fill_pages(const UnpackRun& run);
  // `found` is two 64-bit words: the number of wrong bytes and the lowest position of one.
  void verify(const UnpackRun& run, CUdeviceptr found);

 private:
  CUmodule load(const char* image, const char* what);
  CUfunction find(CUmodule module, const char* name);
  void enqueue(CUfunction function, uint32_t blocks, uint32_t threads, uint32_t shared_bytes,
               void** parameters);
  uint32_t fit_stages(const LaunchShape& shape) const;
  void prepare_bulk();

  Gpu& gpu_;
  CUmodule module_ = nullptr;
  CUfunction registers_ = nullptr, bulk_ = nullptr, nccl_ = nullptr, copy_ = nullptr;
  CUfunction latency_registers_ = nullptr, latency_bulk_ = nullptr;
  CUfunction receive_ = nullptr, fill_words_ = nullptr, fill_pages_ = nullptr, verify_ = nullptr;
  uint32_t multiprocessors_ = 0;
  uint32_t bytes_a_stage_ = 0;  // shared memory per warp
  uint32_t max_dynamic_bytes_ = 0;
};

// Our kernels for every architecture of the build, embedded in the program.
std::string_view kernel_image();

}  // namespace verbena::tools::unpack
