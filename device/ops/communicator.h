// The implementation of verbena_ops. A Communicator has a team's workspaces and the kernels, and launches the
// kernels. Chooser (choice.h) chooses the algorithms.
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

// Host memory that kernels write and the host may read at any time.
class HostNotes {
 public:
  explicit HostNotes(const Driver& driver);
  ~HostNotes();
  HostNotes(const HostNotes&) = delete;
  HostNotes& operator=(const HostNotes&) = delete;

  int64_t* status_address() const { return &content_->status; }
  // Returns the SymmStatus of the first failed call, or 0 if no call has failed.
  int64_t status() const { return __atomic_load_n(&content_->status, __ATOMIC_RELAXED); }
  // The records of a call that is compared between ranks: this rank's record, the records of all members, and
  // this rank's record of a call that differed.
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

// Counts the objects of this process whose kernels wait for other ranks and may run at the same time. Such
// objects are communicators, and exchanges of a mixture of experts.
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
  // Creates the communicator. Collective over the context. Ranks that are not members pass a null `team`. If
  // one rank fails, all ranks throw Failure.
  Communicator(verbena_context* context, const verbena_team* team, const verbena_ops_options& options);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Makes the communicator usable again after a failure. Collective. Waits for this rank's GPU first.
  void reset();
  // Throws Failure if an earlier call has no valid result.
  void check_error() const;
  uint32_t rank() const { return rank_; }
  uint32_t size() const { return size_; }
  // Throws Failure if the team spans several hosts. The text says that `what` works only within a host.
  void expect_one_host(const char* what) const;

  // The functions below are for members. On other ranks they throw Failure.
  const Chooser& chooser() const;
  // Launches a call, or adds it to the open group.
  void submit(const Call& call, const Choice& choice, CUstream stream);
  // Gathers `length_bytes` bytes from each rank with copy engines. Throws Failure if the output is not in a
  // window that is mapped on all members.
  void gather_by_copies(const void* input, void* output, uint64_t length_bytes, CUstream stream);
  // are_in_windows() returns whether the input and the output of an all-reduce lie in windows on this rank.
  // are_in_windows_of_all() returns whether they lie in windows on all ranks: with the option has_windows,
  // the caller has promised that all ranks are alike.
  bool are_in_windows(const Call& call) const;
  bool are_in_windows_of_all(const Call& call) const {
    return options_.has_windows != 0 && are_in_windows(call);
  }
  // Throws Failure if a group is open, because a norm cannot be part of a group.
  void expect_no_group() const;
  // Launches a norm of the rows in the input of `call` or, if `call` has an algorithm, of the reduced rows.
  // If `finalize` is not null, the kernel computes the input of `call` from the outputs of experts.
  void submit_norm(const Call& call, const Choice& choice, const Norm& norm, const Finalize* finalize,
                   CUstream stream);
  void begin_group();
  void end_group(CUstream stream);
  void pause(uint64_t length_ns, CUstream stream);

 private:
  // The distribution of a team over hosts (HostPlaces in across_hosts.cuh).
  struct Hosts {
    uint32_t count, of_this_one;  // number of hosts; number of ranks on this host
    std::vector<uint8_t> members;
  };
  struct Local {
    Local();
    std::shared_ptr<KernelSet> kernels;  // shared by all communicators on this GPU
    HostNotes notes;
    GpuFacts gpu;
    std::vector<uint32_t> world_ranks;  // world ranks of the team's members
  };
  // Enqueues a barrier, which ends when the streams of all members have reached it and have finished their
  // earlier work. If a member does not arrive in time, the barrier fills the output (if any) with 0xff.
  void meet(void* output, uint64_t output_bytes, CUstream stream);
  struct Pending {
    Call call;
    Choice choice;
  };
  void expect_member() const;
  // Throws Failure if an earlier call has failed, because then the ranks are out of step.
  void expect_in_step() const;
  void prepare(const verbena_team* team, Proposal& mine);
  // Sets hosts_, and returns the team of the ranks on this rank's host. Collective. Returns null if the team
  // is on one host, or if this rank is not a member.
  SymmetricTeam find_hosts(const verbena_team* team);
  void make_chooser(const Agreement& agreement);
  // make_workspaces() and make_workspaces_across() create the workspaces. Collective: all ranks create the
  // same workspaces in the same order. Ranks that are not members pass null.
  void make_workspaces(const verbena_team* team);
  void make_workspaces_across(const verbena_team* team, const verbena_team* host, bool has_clusters);
  void load_settings(Proposal& mine);
  SymmetricWorkspace& workspace_of(Family family) { return workspaces_[static_cast<uint32_t>(family)]; }
  std::vector<const SymmetricWorkspace*> list_workspaces() const;
  void place_in_hosts(Launch& launch) const;
  void begin_launch(const Choice& choice, Launch& launch);
  void launch_coded(const Pending& one, CUstream stream);
  // launch() and put() launch calls. If VERBENA_OPS_CHECK is set, launch() first compares the calls of all
  // ranks. put() never compares calls.
  void launch(std::span<const Pending> calls, CUstream stream);
  void put(std::span<const Pending> calls, CUstream stream);
  void compare_calls(const CallRecord& record, const int64_t* counts, CUstream stream);
  std::string describe_difference() const;

  verbena_context* context_;
  verbena_ops_options options_;
  uint32_t rank_ = 0, size_ = 0;  // in the team; both are 0 if this rank is not a member
  std::optional<Local> local_;    // only on members
  std::optional<Hosts> hosts_;    // set on members of a team across hosts
  Algorithm forced_ = Algorithm::kAuto;
  bool checks_calls_ = false;
  std::vector<tuner::OpsMeasurement> measurements_;  // from the tuning file
  std::optional<Chooser> chooser_;                   // only on members
  mutable std::optional<Failure> failure_;           // the failure of an earlier call, until reset()
  std::array<SymmetricWorkspace, kFamilies> workspaces_{SymmetricWorkspace(nullptr),
                                                        SymmetricWorkspace(nullptr)};
  // Used only by a team across hosts: the whole team's workspace, and the workspace of this host's ranks.
  SymmetricWorkspace across_{nullptr}, host_{nullptr};
  std::optional<LiveKernels> is_alive_;
  bool is_grouped_ = false;
  std::vector<Pending> group_;
};

}  // namespace verbena::ops
