// What a verbena_ops is: a team's workspaces, the kernels, and the choice of how a call is done.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/ops/call.h"
#include "device/ops/kernel_set.h"
#include "tuner/calibration.h"
#include "verbena/ops.h"
#include "verbena/verbena.hpp"

namespace verbena::ops {

// Of a call: how, by whom.
struct Choice {
  Algorithm algorithm = Algorithm::kAuto;
  Grid grid{0, 0};
  uint32_t chunk_bytes = 0;
};

// A word that kernels write and the host reads at any time.
class StatusWord {
 public:
  explicit StatusWord(const Driver& driver);
  ~StatusWord();
  StatusWord(const StatusWord&) = delete;
  StatusWord& operator=(const StatusWord&) = delete;

  int64_t* address() const { return word_; }
  int64_t value() const { return __atomic_load_n(word_, __ATOMIC_RELAXED); }
  void clear() { __atomic_store_n(word_, 0, __ATOMIC_RELAXED); }

 private:
  const Driver& driver_;
  int64_t* word_ = nullptr;
};

class Communicator {
 public:
  // Collective over the context; `team` null: this rank is no member. Throws Failure, on all ranks if on one.
  Communicator(verbena_context* context, const verbena_team* team, const verbena_ops_options& options);

  // Collective.
  void reset();
  // Throws Failure if a result is missing.
  void check_error() const;
  uint32_t rank() const { return rank_; }
  uint32_t size() const { return size_; }
  uint32_t most_blocks(Family family) const;
  // Throws Failure if the team lies in several hosts, where there is no `what`.
  void expect_one_host(const char* what) const;
  // Whether a setting chooses the algorithm.
  bool is_forced() const { return forced_ != Algorithm::kAuto; }

  // The rest is for members; throws Failure for others.
  // By the setting, what was measured, or rules of our own; of an all-reduce the tensor's bytes, of all
  // others a message's.
  // `is_in_windows`: of an all-reduce whose tensors are.
  Choice choose(verbena_ops_operation operation, uint64_t bytes, bool is_in_windows = false) const;
  // The same for an all-reduce that may be in few bits.
  Choice choose_coded(Algorithm codec, uint64_t bytes) const;
  // The caller's where it is not 0; throws Failure if it cannot be.
  Choice complete(const Choice& chosen, const verbena_ops_choice* asked) const;
  // At once, or with the group's others.
  void submit(const Call& call, const Choice& choice, CUstream stream);
  // An all-gather of `length_bytes` each by copy engines; throws Failure if the output is in no window that
  // all members reach.
  void gather_by_copies(const void* input, void* output, uint64_t length_bytes, CUstream stream);
  // Whether input and output of an all-reduce lie in windows; and by the options' promise on all ranks.
  bool are_in_windows(const Call& call) const;
  bool are_in_windows_of_all(const Call& call) const {
    return options_.has_windows != 0 && are_in_windows(call);
  }
  // The grid of an all-reduce with a norm whose rows stay in registers; none: the algorithm is none for that,
  // or they have no room there.
  std::optional<Grid> spread_rows(Algorithm algorithm, uint64_t rows, uint64_t row_bytes) const;
  // A norm cannot be part of a group: fails where one is open.
  void expect_no_group() const;
  // Of rows that `call` has as its input, or of what its algorithm makes of all ranks' input.
  void submit_norm(const Call& call, const Choice& choice, const Norm& norm, CUstream stream);
  void begin_group();
  void end_group(CUstream stream);
  void pause(uint64_t length_ns, CUstream stream);

 private:
  // Blocks of a communicator across hosts: each asks a NIC for a part of its own, and parts are to be long.
  static constexpr uint32_t kMostHostBlocks = 32;
  // How a team lies in several hosts (HostPlaces of across_hosts.cuh).
  struct Hosts {
    uint32_t count, of_this_one;  // hosts with a rank of this one's number, ranks of this one
    std::vector<uint8_t> members;
  };
  struct Local {
    Local() : status(Driver::instance()) {}
    KernelSet kernels;
    StatusWord status;
    std::vector<uint32_t> world_ranks;  // of the members
  };
  // Returns when all members have come here and what they put into their streams before is done: in the
  // stream.
  void meet(CUstream stream);
  struct Pending {
    Call call;
    Choice choice;
  };
  void expect_member() const;
  // Collective: sets hosts_. The team of this rank's host; null: the team has one host, or this rank none.
  SymmetricTeam find_hosts(const verbena_team* team);
  size_t mark_bytes(size_t bytes) const;
  // Collective: all ranks make the same ones in the same order, those of no member by null.
  void make_workspaces(const verbena_team* team);
  void make_workspaces_across(const verbena_team* team, const verbena_team* host);
  void load_measurements();
  uint64_t compute_fingerprint() const;
  Choice choose_by_rules(verbena_ops_operation operation, uint64_t bytes, bool is_in_windows) const;
  Choice spread(Algorithm algorithm, verbena_ops_operation operation, uint64_t bytes) const;
  Choice spread_across_hosts(uint64_t bytes) const;
  uint32_t count_chunk_blocks() const;
  SymmetricWorkspace& workspace_of(Family family) { return workspaces_[static_cast<uint32_t>(family)]; }
  std::vector<const SymmetricWorkspace*> list_workspaces() const;
  void place_in_hosts(Launch& launch) const;
  void begin_launch(const Choice& choice, Launch& launch);
  void launch_coded(const Pending& one, CUstream stream);
  void launch(std::span<const Pending> calls, CUstream stream);

  verbena_context* context_;
  verbena_ops_options options_;
  uint32_t rank_ = 0, size_ = 0;  // in the team; 0 of no member
  std::optional<Local> local_;    // of members
  std::optional<Hosts> hosts_;    // of members of a team in several hosts
  Algorithm forced_ = Algorithm::kAuto;
  std::string gpu_;                                  // its name
  std::vector<tuner::OpsMeasurement> measurements_;  // of the platform
  std::array<SymmetricWorkspace, kFamilies> workspaces_{SymmetricWorkspace(nullptr),
                                                        SymmetricWorkspace(nullptr)};
  // Of a team in several hosts: the whole team's, and the host's.
  SymmetricWorkspace across_{nullptr}, host_{nullptr};
  bool is_grouped_ = false;
  std::vector<Pending> group_;
};

}  // namespace verbena::ops
