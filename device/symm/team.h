// A team: ranks of a context with words of their own in everybody's heap, and what a kernel is told of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/cuda_driver.h"
#include "device/symm/heap.h"
#include "device/symm/membership.h"
#include "device/symm/reach.h"
#include "verbena/symm_abi.h"

namespace verbena::symm {

// Bytes of a team's words in the heap, for a world of so many ranks.
uint64_t measure_team_words(uint32_t count_ranks);

// Whether SymmContext::failure tells of a call that could not be carried out, and not of a wait.
constexpr bool is_refused_call(uint64_t failure) {
  return static_cast<SymmWait>(failure & 0xff) == SymmWait::kCall;
}

// The first wait in a kernel of any member that ended by time (kTimeout), or the first call of a member that
// could not be carried out (kInvalidArgument), in words; kOk: there is neither.
struct TeamFailure {
  base::Status status = base::Status::kOk;
  std::string text;
};

// What one team has and no other.
struct TeamParts {
  std::string name;
  uint64_t words = 0;             // the offset of its words in the heap, which are zero
  std::vector<std::byte> behind;  // what kernels find directly behind its context and the backend's extension
};

class Team {
 public:
  // `common` has what all teams of this rank share. In memory of the calling thread's current GPU.
  static base::Result<std::unique_ptr<Team>> make(TeamPlace place, TeamParts parts, const Reach& reach,
                                                  const Heap& heap, const SymmContext& common);

  const std::vector<uint32_t>& ranks() const { return place_.ranks; }
  uint32_t rank() const { return place_.rank; }
  uint32_t index() const { return place_.index; }
  const TeamPlace& place() const { return place_; }
  const std::string& name() const { return parts_.name; }
  // Of its words in the heap.
  uint64_t words() const { return parts_.words; }
  // What the word SymmContext::failure says, in words.
  std::string describe_failure(uint64_t failure) const;
  // For kernels that take it by value; its pointers are the GPU's, as long as the team lives. Behind it lie
  // the extension of the heap's backend and TeamParts::behind.
  const SymmContext& context() const { return *reinterpret_cast<const SymmContext*>(image_.data()); }
  // From an address of ours to the member's, or kSymmOutOfReach.
  int64_t delta_bytes(uint32_t member) const { return deltas_[member]; }
  // The same in memory of the GPU.
  const SymmContext* device_context() const { return static_cast<const SymmContext*>(memory_.device()); }

 private:
  Team(TeamPlace place, TeamParts parts) : place_(std::move(place)), parts_(std::move(parts)) {}
  void describe_members(SymmContext& context, const Reach& reach, const Heap& heap);
  base::Outcome write(SymmContext context, std::span<const std::byte> extension);

  TeamPlace place_;
  TeamParts parts_;
  std::vector<int64_t> deltas_;   // of the members
  std::vector<std::byte> image_;  // the context, its extension, then what it points to
  base::Buffer memory_;           // the same for the GPU
};

}  // namespace verbena::symm
