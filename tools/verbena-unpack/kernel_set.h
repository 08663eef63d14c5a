#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/gpu.h"
#include "verbena-unpack/latency_run.h"
#include "verbena-unpack/unpack_run.h"

namespace verbena::tools::unpack {

// Who moves the bytes: our two ways, NCCL's code, and the plain copy they are compared with.
enum class Mover : uint8_t { kRegisters, kBulk, kNccl, kCopy };

const char* describe_mover(Mover mover);

struct LaunchShape {
  uint32_t blocks = 0;
  uint32_t threads = 0;
  uint32_t stages = 0;  // of the bulk way, a warp; as many as fit when there is no room for all
};

// The kernels on one GPU. Launches only enqueue.
class KernelSet {
 public:
  explicit KernelSet(Gpu& gpu);

  // From then on NCCL's kernel is there.
  void add_nccl(const std::string& image);

  bool has(Mover mover) const;
  std::vector<Mover> list_movers() const;

  // `bad_counts` is a 32-bit word that the slots refused are added to.
  void launch(Mover mover, const UnpackRun& run, const LaunchShape& shape, CudaAddress bad_counts);
  void launch_latency(Mover mover, const LatencyRun& latency, const LaunchShape& shape);
  // The next receive of the connection with this handle; the number of its descriptors goes to `placed`.
  void launch_receive(CudaAddress handle, CudaAddress data, CudaAddress placed, uint32_t threads);
  void fill_words(CudaAddress target, uint64_t length_bytes, uint64_t word);
  void fill_pages(const UnpackRun& run);
  // `found`: two 64-bit words, the number of wrong bytes and the lowest position of one.
  void verify(const UnpackRun& run, CudaAddress found);

 private:
  CudaModule load(const char* image, const char* what);
  CudaFunction find(CudaModule module, const char* name);
  void enqueue(CudaFunction function, uint32_t blocks, uint32_t threads, uint32_t shared_bytes,
               void** parameters);
  uint32_t fit_stages(const LaunchShape& shape) const;
  void prepare_bulk();

  Gpu& gpu_;
  CudaModule module_ = nullptr;
  CudaFunction registers_ = nullptr, bulk_ = nullptr, nccl_ = nullptr, copy_ = nullptr;
  CudaFunction latency_registers_ = nullptr, latency_bulk_ = nullptr;
  CudaFunction receive_ = nullptr, fill_words_ = nullptr, fill_pages_ = nullptr, verify_ = nullptr;
  uint32_t multiprocessors_ = 0;
  uint32_t bytes_a_stage_ = 0;  // of shared memory, a warp
  uint32_t max_dynamic_bytes_ = 0;
};

}  // namespace verbena::tools::unpack
