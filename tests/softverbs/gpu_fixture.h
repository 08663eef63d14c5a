// What the tests of GPU memory share: registered memory of each kind, processes that may use CUDA.
#pragma once

#include <cstdlib>
#include <functional>

#include "fixture.h"
#include "gpu_memory.h"

#undef ibv_reg_mr

namespace verbena::softverbs_test {

constexpr size_t kBytes = 3 << 20;

template <typename Base>
class WithGpu : public Base {
 protected:
  void SetUp() override {
    if (count_gpus() == 0) GTEST_SKIP() << "no CUDA device: skipped";
  }
};

inline bool is_over_wire() {
  return getenv("SOFTVERBS_FORCE_WIRE") != nullptr;
}

// Memory of some kind, registered.
struct Registered {
  Registered(Node& node, Kind kind, int gpu, int more_access = 0) : memory(kind, gpu, kBytes) {
    mr = ibv_reg_mr(node.pd, reinterpret_cast<void*>(memory.address()), kBytes, kAllAccess | more_access);
    EXPECT_NE(mr, nullptr) << get_name(kind);
  }
  ~Registered() { EXPECT_EQ(ibv_dereg_mr(mr), 0); }
  // For a request of this process, or of a peer.
  ibv_sge piece(size_t offset, size_t bytes) const {
    return {memory.address() + offset, static_cast<uint32_t>(bytes), mr->lkey};
  }
  RemoteMemory remote(size_t offset = 0) const { return {memory.address() + offset, mr->rkey}; }
  TestMemory memory;
  ibv_mr* mr;
};

// Runs code in a separate process, so that the test itself may fork again after the code has used CUDA. The
// code may fork, too, before it uses CUDA.
inline void run_apart(const std::function<void()>& body) {
  Child child([&body](int) { body(); });
}

}  // namespace verbena::softverbs_test
