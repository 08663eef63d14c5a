// What a verbena_moe is: a workspace of a team, and the kernels that move tokens over it.
#pragma once

#include <memory>
#include <optional>

#include "device/ops/communicator.h"
#include "device/ops/kernel_set.h"
#include "verbena/moe.h"
#include "verbena/verbena.hpp"

namespace verbena::ops {

// Throws Failure where options cannot be.
device::MoeShape make_moe_shape(const verbena_moe_options& options, uint32_t ranks, uint32_t blocks,
                                uint32_t hosts = 1);

// Returns the rows that an output needs for any routing.
uint32_t find_max_rows(const device::MoeShape& shape, verbena_moe_grouping grouping, uint32_t alignment);

class MoeExchange {
 public:
  // Collective over the context; `team` null: this rank is no member. Throws Failure, on all ranks if on one.
  MoeExchange(verbena_context* context, const verbena_team* team, const verbena_moe_options& options);

  // Collective. Waits for this rank's GPU first.
  void reset();
  // Throws Failure if a result is missing.
  void check_error() const;
  // The mask of living ranks of later calls. Throws Failure if a call is in flight, and if the mask brings
  // ranks back that calls since the last reset() left out.
  void set_mask(uint64_t living);
  uint64_t mask() const;
  // The rest is for members; throws Failure for others, and where arguments cannot be.
  device::MoeHandleLayout layout() const;
  void dispatch(const verbena_moe_dispatch_arguments& arguments, CUstream stream);
  void combine(const verbena_moe_combine_arguments& arguments, CUstream stream);

 private:
  struct Local {
    Local() : kernels(KernelSet::share()), notes(Driver::instance()), gpu(Driver::instance().find_gpu()) {}
    std::shared_ptr<KernelSet> kernels;
    HostNotes notes;
    GpuFacts gpu;
  };

  void expect_member() const;
  void expect_in_step() const;
  Grid choose_grid(uint32_t blocks, uint32_t tokens, uint32_t row_bytes) const;
  // Returns the phases of a call as the kernel takes them. Throws Failure if the phase is out of turn, or
  // if a RECEIVE has other arguments than its SEND; `sent` has those, and is empty while no call is under
  // way.
  template <typename Arguments>
  uint32_t begin_phase(const char* name, const Arguments& arguments, std::optional<Arguments>& sent) const;
  static bool is_last(verbena_moe_phase phase) {
    return phase == VERBENA_MOE_BOTH || phase == VERBENA_MOE_RECEIVE;
  }
  // After the launch.
  template <typename Arguments>
  void end_phase(const Arguments& arguments, std::optional<Arguments>& sent) {
    in_all_calls_ &= shape_.living;  // FAULT(ranks_come_back_without_a_reset)
    if (!is_last(arguments.phase)) {
      sent = arguments;
    } else {
      sent.reset();
    }
  }
  void set_groups(const verbena_moe_dispatch_arguments& arguments, device::MoeDispatch& call) const;
  void set_rows(const verbena_moe_dispatch_arguments& arguments, device::MoeDispatch& call) const;
  template <typename MoeLaunch>
  void begin_launch(MoeFarLaunch<MoeLaunch>& launch);
  void expect_whole_hosts(uint32_t living) const;

  const verbena_moe_options options_;
  device::MoeShape shape_{};
  device::MoeHosts hosts_{};
  uint32_t me_ = 0;              // of members
  uint32_t in_all_calls_ = ~0U;  // a bit for each rank that no call since the last reset() has left out
  std::optional<Local> local_;   // of members
  std::optional<verbena_moe_dispatch_arguments> sent_dispatch_;  // sent and not received
  std::optional<verbena_moe_combine_arguments> sent_combine_;
  SymmetricWorkspace workspace_{nullptr};
  std::optional<LiveKernels> is_alive_;
};

}  // namespace verbena::ops
