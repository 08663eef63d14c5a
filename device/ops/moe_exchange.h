// The implementation of verbena_moe. A MoeExchange has a team's workspace, and launches the kernels that move
// tokens through the workspace.
#pragma once

#include <memory>
#include <optional>

#include "device/ops/communicator.h"
#include "device/ops/kernel_set.h"
#include "device/ops/moe_choice.h"
#include "verbena/moe.h"
#include "verbena/verbena.hpp"

namespace verbena::ops {

// Returns the shape of an exchange. Throws Failure if the options are invalid.
device::MoeShape make_moe_shape(const verbena_moe_options& options, uint32_t ranks, uint32_t blocks,
                                uint32_t hosts = 1);

// Returns the number of rows that an output needs for any routing.
uint32_t find_max_rows(const device::MoeShape& shape, verbena_moe_grouping grouping, uint32_t alignment);

class MoeExchange {
 public:
  // Creates the exchange. Collective over the context. Ranks that are not members pass a null `team`. If one
  // rank fails, all ranks throw Failure.
  MoeExchange(verbena_context* context, const verbena_team* team, const verbena_moe_options& options);

  // Makes the exchange usable again after a failure. Collective. Waits for this rank's GPU first.
  void reset();
  // Throws Failure if an earlier call has no valid result.
  void check_error() const;
  // set_mask() sets the mask of the ranks that take part in later calls, and mask() returns the mask.
  // set_mask() throws Failure if a call is in flight, or if the mask includes a rank that was excluded from a
  // call since the last reset().
  void set_mask(uint64_t living);
  uint64_t mask() const;
  // The functions below are for members. These functions throw Failure on ranks that are not members, and on
  // members if arguments are invalid.
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
  template <typename Arguments>
  MoeChoice choose(device::MoeKind kind, const Arguments& arguments, uint32_t row_bytes) const;
  // With in_windows: throws Failure unless memory is in a window and aligned to packets.
  void expect_in_window(const char* name, const void* memory, uint64_t length_bytes) const;
  // Returns the bits of the phases that the kernel runs. Throws Failure if the phase is out of order, or if
  // the arguments of a RECEIVE differ from the arguments of its SEND. `sent` contains the arguments of the
  // SEND, or nothing if no call is in flight.
  template <typename Arguments>
  uint32_t begin_phase(const char* name, const Arguments& arguments, std::optional<Arguments>& sent) const;
  static bool is_last(verbena_moe_phase phase) {
    return phase == VERBENA_MOE_BOTH || phase == VERBENA_MOE_RECEIVE;
  }
  // Records the phase, after the launch.
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

  verbena_context* const context_;
  const verbena_moe_options options_;
  device::MoeShape shape_{};
  device::MoeHosts hosts_{};
  uint32_t me_ = 0;              // this rank's number in the team; only on members
  uint32_t in_all_calls_ = ~0U;  // a bit for each rank that has taken part in all calls since reset()
  std::optional<Local> local_;   // only on members
  std::optional<verbena_moe_dispatch_arguments> sent_dispatch_;  // arguments of a SEND without its RECEIVE
  std::optional<verbena_moe_combine_arguments> sent_combine_;
  SymmetricWorkspace workspace_{nullptr};
  std::optional<LiveKernels> is_alive_;
};

}  // namespace verbena::ops
