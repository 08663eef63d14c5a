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
device::MoeShape make_moe_shape(const verbena_moe_options& options, uint32_t ranks, uint32_t blocks);

class MoeExchange {
 public:
  // Collective over the context; `team` null: this rank is no member. Throws Failure, on all ranks if on one.
  MoeExchange(verbena_context* context, const verbena_team* team, const verbena_moe_options& options);

  // Collective. Waits for this rank's GPU first.
  void reset();
  // Throws Failure if a result is missing.
  void check_error() const;
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
  Grid choose_grid(uint32_t blocks) const;
  // The phases of a call as the kernel is told them. Throws Failure where one is out of turn.
  uint32_t begin_phase(device::MoeKind kind, verbena_moe_phase phase) const;
  void end_phase(device::MoeKind kind, uint32_t phases) {
    is_under_way_[static_cast<uint32_t>(kind)] = phases == device::kMoeSend;
  }
  void set_rows(const verbena_moe_dispatch_arguments& arguments, device::MoeDispatch& call) const;
  void begin_launch(Launch& launch) const;

  const verbena_moe_options options_;
  device::MoeShape shape_{};
  std::optional<Local> local_;  // of members
  bool is_under_way_[2] = {};   // by kind: sent and not received
  SymmetricWorkspace workspace_{nullptr};
};

}  // namespace verbena::ops
