// What a verbena_ops is: a team's two workspaces, the kernels, and the choice of how a call is done.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/ops/call.h"
#include "device/ops/kernel_set.h"
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

  // The rest is for members; throws Failure for others.
  Choice choose(Kind kind, uint32_t type, uint32_t reduction, uint64_t bytes) const;
  // The caller's where it is not 0; throws Failure if it cannot be.
  Choice complete(const Choice& chosen, const verbena_ops_choice* asked) const;
  // At once, or with the group's others.
  void submit(const Call& call, const Choice& choice, CUstream stream);
  void begin_group();
  void end_group(CUstream stream);
  void pause(uint64_t length_ns, CUstream stream);

 private:
  struct Local {
    KernelSet kernels;
    StatusWord status{Driver::instance()};
  };
  struct Pending {
    Call call;
    Choice choice;
  };
  void expect_member() const;
  void launch(std::span<const Pending> calls, CUstream stream);

  verbena_context* context_;
  verbena_ops_options options_;
  uint32_t rank_ = 0, size_ = 0;  // in the team; 0 of no member
  std::optional<Local> local_;    // of members
  SymmetricWorkspace packets_, chunks_;
  bool is_grouped_ = false;
  std::vector<Pending> group_;
};

}  // namespace verbena::ops
