#pragma once

#include <map>
#include <mutex>
#include <tuple>

#include "softverbs/cuda_driver.h"
#include "softverbs/process.h"

namespace verbena::softverbs {

// GPU memory of other processes, mapped into this one. Each allocation is mapped once for each of our
// contexts, at its first use by a worker, and unmapped when its owner has ended the registration or died.
class GpuImports {
 public:
  // Where an address of `peer` appears here; 0 when its memory cannot be mapped. `gpu` is 1 + index of its
  // SharedGpu. With `context` current, after begin_use().
  uint64_t find(const cuda::Driver& driver, cuda::CUcontext context, Peer& peer, uint32_t gpu,
                uint64_t address);

  // Around everything that uses addresses from find().
  void begin_use() { users_.fetch_add(1); }
  void end_use() { users_.fetch_sub(1); }

  // Unmaps what is no longer offered, unless somebody copies. May block: called when nothing else is to do.
  // False when nothing is mapped.
  bool drop_stale();

 private:
  // A thread's latest mapping: many packets go there one after the other.
  struct Latest {
    Peer* peer = nullptr;
    uint32_t gpu = 0, life = 0;
    cuda::CUcontext context = nullptr;
    uint64_t base = 0, peer_base = 0;
  };
  struct Mapping {
    uint32_t life = 0;
    uint64_t base = 0;  // here; 0: could not be mapped
    uint64_t peer_base = 0;
    uint64_t bytes = 0;
    bool is_ipc = false;
  };
  void drop_stale(const cuda::Driver& driver);  // with the lock, and nobody uses them
  using Key = std::tuple<Peer*, uint32_t, cuda::CUcontext>;

  std::atomic<uint32_t> users_{0};
  std::atomic<bool> is_dropping_{false};
  std::mutex mutex_;
  std::map<Key, Mapping> mappings_;
};

GpuImports& get_gpu_imports();

}  // namespace verbena::softverbs
