// A team of ranks of a context. Each team has separate words (signals and barriers) in every rank's heap, and
// a SymmContext with which kernels use the team.
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

// Returns the size in bytes of a team's words in the heap, for a world of `count_ranks` ranks.
uint64_t measure_team_words(uint32_t count_ranks);

// Returns whether SymmContext::failure reports an invalid call rather than a timed-out wait.
constexpr bool is_refused_call(uint64_t failure) {
  return static_cast<SymmWait>(failure & 0xff) == SymmWait::kCall;
}

// The first failure in a kernel of any member, with its description. The failure is a timed-out wait
// (kTimeout) or an invalid call (kInvalidArgument); kOk means that there is no failure.
struct TeamFailure {
  base::Status status = base::Status::kOk;
  std::string text;
};

// The properties that distinguish a team from other teams of the context.
struct TeamParts {
  std::string name;
  uint64_t words = 0;             // offset of the team's words in the heap; the words are zero
  std::vector<std::byte> behind;  // data for kernels that follows the context and the backend's extension
};

class Team {
 public:
  // Creates a team in memory of the calling thread's current GPU. `common` has the values that all teams of
  // this rank share.
  static base::Result<std::unique_ptr<Team>> make(TeamPlace place, TeamParts parts, const Reach& reach,
                                                  const Heap& heap, const SymmContext& common);

  const std::vector<uint32_t>& ranks() const { return place_.ranks; }
  uint32_t rank() const { return place_.rank; }
  uint32_t index() const { return place_.index; }
  const TeamPlace& place() const { return place_; }
  const std::string& name() const { return parts_.name; }
  // The offset of the team's words in the heap.
  uint64_t words() const { return parts_.words; }
  // Describes the value of SymmContext::failure for an error message.
  std::string describe_failure(uint64_t failure) const;
  // The context, for kernels that take it by value. The context's pointers are GPU addresses and are valid as
  // long as the team lives. The backend's extension and TeamParts::behind follow the context in memory.
  const SymmContext& context() const { return *reinterpret_cast<const SymmContext*>(image_.data()); }
  // Returns the difference between the member's addresses and this rank's addresses in bytes, or
  // kSymmOutOfReach.
  int64_t delta_bytes(uint32_t member) const { return deltas_[member]; }
  // The context in GPU memory.
  const SymmContext* device_context() const { return static_cast<const SymmContext*>(memory_.device()); }

 private:
  Team(TeamPlace place, TeamParts parts) : place_(std::move(place)), parts_(std::move(parts)) {}
  void describe_members(SymmContext& context, const Reach& reach, const Heap& heap);
  base::Outcome write(SymmContext context, std::span<const std::byte> extension);

  TeamPlace place_;
  TeamParts parts_;
  std::vector<int64_t> deltas_;   // by member
  std::vector<std::byte> image_;  // the context, its extension, then the data to which it points
  base::Buffer memory_;           // the image in GPU memory
};

}  // namespace verbena::symm
