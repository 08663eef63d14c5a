// A verbena_ops: a team's workspaces, the kernels and their launches. Chooser (choice.h) decides how a call
// runs.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/ops/agreement.h"
#include "device/ops/call.h"
#include "device/ops/call_record.h"
#include "device/ops/choice.h"
#include "device/ops/kernel_set.h"
#include "tuner/calibration.h"
#include "verbena/ops.h"
#include "verbena/verbena.hpp"

namespace verbena::ops {

// What kernels write in the host's memory and the host reads at any time.
class HostNotes {
 public:
  explicit HostNotes(const Driver& driver);
  ~HostNotes();
  HostNotes(const HostNotes&) = delete;
  HostNotes& operator=(const HostNotes&) = delete;

  int64_t* status_address() const { return &content_->status; }
  // A SymmStatus; 0: no call has failed.
  int64_t status() const { return __atomic_load_n(&content_->status, __ATOMIC_RELAXED); }
  // Of the call that is being compared: this rank's, every member's, and this rank's where it differed.
  CallRecord* own_record() const { return &content_->own; }
  CallRecord* records() const { return content_->all; }
  CallRecord* refused_record() const { return &content_->refused; }
  void clear() { *content_ = {}; }

 private:
  struct Content {
    alignas(64) int64_t status;
    CallRecord own, refused, all[kMaxRanks];
  };
  const Driver& driver_;
  Content* content_ = nullptr;
};

// Counts what has kernels that wait for other ranks, in this process: communicators and exchanges of a mixture of
// experts, whose kernels may run at the same time.
class LiveKernels {
 public:
  LiveKernels() { ++count_; }
  ~LiveKernels() { --count_; }
  LiveKernels(const LiveKernels&) = delete;
  LiveKernels& operator=(const LiveKernels&) = delete;
  static uint32_t count() { return count_; }

 private:
  static inline std::atomic<uint32_t> count_{0};
};

class Communicator {
 public:
  // Collective over the context; `team` null: this rank is no member. Throws Failure, on all ranks if on one.
  Communicator(verbena_context* context, const verbena_team* team, const verbena_ops_options& options);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Collective. Waits for this rank's GPU first.
  void reset();
  // Throws Failure if a result is missing.
  void check_error() const;
  uint32_t rank() const { return rank_; }
  uint32_t size() const { return size_; }
  // Throws Failure if the team lies in several hosts, where there is no `what`.
  void expect_one_host(const char* what) const;

  // The rest is for members; throws Failure for others.
  const Chooser& chooser() const;
  // At once, or with the group's others.
  void submit(const Call& call, const Choice& choice, CUstream stream);
  // An all-gather of `length_bytes` each by copy engines; throws Failure if the output is in no window that
  // all members reach.
  void gather_by_copies(const void* input, void* output, uint64_t length_bytes, CUstream stream);
  // The window that covers a tensor, and where in it; none: no window covers all of it.
  struct WindowPlace {
    verbena_window* window;
    uint64_t offset;
  };
  std::optional<WindowPlace> find_place(const void* tensor, uint64_t length_bytes) const;
  // Whether input and output of an all-reduce lie in windows; and by the options' promise on all ranks.
  bool are_in_windows(const Call& call) const;
  bool are_in_windows_of_all(const Call& call) const {
    return options_.has_windows != 0 && are_in_windows(call);
  }
  // A norm cannot be part of a group: fails where one is open.
  void expect_no_group() const;
  // Of rows that `call` has as its input, or of what its algorithm makes of all ranks' input.
  void submit_norm(const Call& call, const Choice& choice, const Norm& norm, CUstream stream);
  void begin_group();
  void end_group(CUstream stream);
  void pause(uint64_t length_ns, CUstream stream);

 private:
  // How a team lies in several hosts (HostPlaces of across_hosts.cuh).
  struct Hosts {
    uint32_t count, of_this_one;  // hosts with a rank of this one's number, ranks of this one
    std::vector<uint8_t> members;
  };
  struct Local {
    Local();
    std::shared_ptr<KernelSet> kernels;  // of all communicators on this GPU
    HostNotes notes;
    GpuFacts gpu;
    std::vector<uint32_t> world_ranks;  // of the members
  };
  // In the stream: ends when all members have come here, and what they put into their streams before is done.
  // If one does not come, the output is spoilt, where there is one.
  void meet(void* output, uint64_t output_bytes, CUstream stream);
  struct Pending {
    Call call;
    Choice choice;
  };
  void expect_member() const;
  // Throws Failure if an earlier call has failed: ranks are out of step then.
  void expect_in_step() const;
  void prepare(const verbena_team* team, Proposal& mine);
  // Collective: sets hosts_. The team of this rank's host; null: the team has one host, or this rank none.
  SymmetricTeam find_hosts(const verbena_team* team);
  void make_chooser(const Agreement& agreement);
  // Collective: all ranks make the same ones in the same order, those of no member by null.
  void make_workspaces(const verbena_team* team);
  void make_workspaces_across(const verbena_team* team, const verbena_team* host);
  void load_settings(Proposal& mine);
  SymmetricWorkspace& workspace_of(Family family) { return workspaces_[static_cast<uint32_t>(family)]; }
  std::vector<const SymmetricWorkspace*> list_workspaces() const;
  void place_in_hosts(Launch& launch) const;
  void begin_launch(const Choice& choice, Launch& launch);
  void launch_coded(const Pending& one, CUstream stream);
  // With the comparison that VERBENA_OPS_CHECK asks for, and without.
  void launch(std::span<const Pending> calls, CUstream stream);
  void put(std::span<const Pending> calls, CUstream stream);
  void compare_calls(const CallRecord& record, const int64_t* counts, CUstream stream);
  std::string describe_difference() const;

  verbena_context* context_;
  verbena_ops_options options_;
  uint32_t rank_ = 0, size_ = 0;  // in the team; 0 of no member
  std::optional<Local> local_;    // of members
  std::optional<Hosts> hosts_;    // of members of a team in several hosts
  Algorithm forced_ = Algorithm::kAuto;
  bool checks_calls_ = false;
  std::vector<tuner::OpsMeasurement> measurements_;  // of the platform
  std::optional<Chooser> chooser_;                   // of members
  mutable std::optional<Failure> failure_;           // of a call, until reset()
  std::array<SymmetricWorkspace, kFamilies> workspaces_{SymmetricWorkspace(nullptr),
                                                        SymmetricWorkspace(nullptr)};
  // Of a team in several hosts: the whole team's, and the host's.
  SymmetricWorkspace across_{nullptr}, host_{nullptr};
  std::optional<LiveKernels> is_alive_;
  bool is_grouped_ = false;
  std::vector<Pending> group_;
};

}  // namespace verbena::ops
