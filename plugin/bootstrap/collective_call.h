// Collective calls: their interface (Carrier), the tree of ranks that they travel on, and one rank's state of
// one call. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "bootstrap/messages.h"

namespace verbena::bootstrap {

// The maximum number of child connections of a process, because of its limit of open files.
inline constexpr uint32_t kFanOutRanks = 64;

// The tree of connected ranks: rank 0 is the root, and every other rank has one parent. Up to 65 ranks form a
// star; with 1,024 ranks the tree has two levels below the root. Pure arithmetic.
struct TreeShape {
  uint32_t count_ranks = 1;
  uint32_t fan_out = kFanOutRanks;

  // Returns the rank's parent in the tree. Not for rank 0, the root.
  uint32_t parent_of(uint32_t rank) const { return (rank - 1) / fan_out; }
  uint32_t first_child_of(uint32_t rank) const {
    return static_cast<uint32_t>(std::min<uint64_t>(uint64_t{rank} * fan_out + 1, count_ranks));
  }
  uint32_t count_children(uint32_t rank) const {
    return static_cast<uint32_t>(std::min<uint64_t>(uint64_t{rank} * fan_out + 1 + fan_out, count_ranks)) -
           first_child_of(rank);
  }
  uint32_t depth_of(uint32_t rank) const {
    uint32_t depth = 0;
    for (; rank != 0; rank = parent_of(rank)) ++depth;
    return depth;
  }
  // Returns whether `rank` is `ancestor` or below it.
  bool is_within(uint32_t rank, uint32_t ancestor) const {
    while (rank > ancestor) rank = parent_of(rank);
    return rank == ancestor;
  }
  // Returns the child of `from` that is `rank` or an ancestor of `rank`. `rank` must be below `from`.
  uint32_t child_towards(uint32_t from, uint32_t rank) const {
    while (parent_of(rank) != from) rank = parent_of(rank);
    return rank;
  }
  uint32_t count_within(uint32_t ancestor) const {
    uint32_t count = 0;
    for (uint32_t rank = ancestor; rank < count_ranks; ++rank) count += is_within(rank, ancestor) ? 1 : 0;
    return count;
  }
};

class CollectiveCall {
 public:
  // The caller owns `mine` and `result`. Only the root gathers contributions; other ranks relay them.
  CollectiveCall(const TreeShape& shape, uint32_t rank, Operation operation, base::Bytes mine,
                 std::span<uint8_t> result, base::Deadline its_deadline);

  Operation operation() const { return operation_; }
  // The length of each rank's contribution.
  size_t length_bytes() const { return mine_.size(); }
  base::Bytes mine() const { return mine_; }
  // Returns true if each rank receives a different result.
  bool is_apart() const { return operation_ == Operation::kExchange; }

  // Records a contribution that passed through this rank. Its rank and length must have been checked.
  void hear(uint32_t rank, base::Bytes contribution);
  bool has_heard(uint32_t rank) const { return is_heard_[rank]; }
  // Returns whether all ranks of this rank's part of the tree have contributed.
  bool has_heard_all() const { return heard_ == expected_; }
  bool has_heard_all_within(uint32_t child) const;
  // Returns the ranks in this rank's part of the tree that did not contribute. Ranks below a missing rank are
  // left out, because nothing is known about them.
  std::vector<uint32_t> list_missing() const;

  // Call these functions on the root after all ranks have contributed. They return the result for all ranks,
  // or for one rank.
  base::Bytes gathered() const { return gathered_; }
  std::vector<uint8_t> collect_for(uint32_t rank) const;

  size_t result_bytes() const { return result_.size(); }
  void set_result(base::Bytes bytes);
  // Returns how many results are still expected: one for this rank and, if the results differ between ranks,
  // one for each rank below it.
  uint32_t results_due() const { return results_due_; }
  void pass_result() { --results_due_; }
  void end_results() { results_due_ = 0; }

  base::Deadline deadline;
  bool is_overdue = false;  // the root was asked which ranks are missing

 private:
  TreeShape shape_;
  uint32_t rank_;
  Operation operation_;
  base::Bytes mine_;
  std::span<uint8_t> result_;
  std::vector<bool> is_heard_;  // by rank
  uint32_t heard_ = 0, expected_, results_due_;
  std::vector<uint8_t> gathered_;  // in the root, rank by rank
};

// Carries bytes between the ranks for a Bootstrap (bootstrap.h). Every call is collective: all ranks make the
// same calls, with the same lengths, in the same order. After an error every further call returns the same
// error.
class Carrier {
 public:
  virtual ~Carrier() = default;

  // Gathers `mine` of all ranks into `all`, in rank order. `all` has count_ranks() times the length of
  // `mine`.
  virtual base::Outcome all_gather(Operation what, std::span<const std::byte> mine,
                                   std::span<std::byte> all) = 0;
  // Part i of `mine` goes to rank i; part i of `theirs` comes from rank i. Both have count_ranks() parts.
  virtual base::Outcome exchange(std::span<const std::byte> mine, std::span<std::byte> theirs) = 0;
  // Returns whether all other ranks are alive, as far as this rank can see without waiting. Call it between
  // two collective calls.
  virtual base::Outcome check_ranks() = 0;
  // The deadline of each later call, if the carrier has deadlines of its own.
  virtual void set_timeout_ms(int64_t) {}

  virtual uint32_t rank() const = 0;
  virtual uint32_t count_ranks() const = 0;
};

// The caller's all-gather: copies `bytes_each` bytes at `mine` from every rank to `all` on every rank, in
// rank order. Returns 0 on success.
using AllGatherFunction = int (*)(void* context, const void* mine, void* all, size_t bytes_each);

}  // namespace verbena::bootstrap
