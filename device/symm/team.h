// A team: ranks of a context with words of their own in everybody's heap, and what a kernel is told of them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
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

class Team {
 public:
  // `words` is the offset of the team's words in the heap, which are zero; `common` has what all teams of
  // this rank share. In memory of the calling thread's current GPU.
  static base::Result<std::unique_ptr<Team>> make(TeamPlace place, const Reach& reach, const Heap& heap,
                                                  uint64_t words, const SymmContext& common);

  const std::vector<uint32_t>& ranks() const { return place_.ranks; }
  uint32_t rank() const { return place_.rank; }
  uint32_t index() const { return place_.index; }
  // For kernels that take it by value; its pointers are the GPU's, as long as the team lives. Behind it lies
  // the extension of the heap's backend.
  const SymmContext& context() const { return *reinterpret_cast<const SymmContext*>(image_.data()); }
  // The same in memory of the GPU.
  const SymmContext* device_context() const { return static_cast<const SymmContext*>(memory_.device()); }

 private:
  explicit Team(TeamPlace place) : place_(std::move(place)) {}
  std::vector<int64_t> describe_members(SymmContext& context, const Reach& reach, const Heap& heap) const;
  base::Outcome write(SymmContext context, std::span<const std::byte> extension,
                      std::span<const int64_t> deltas);

  TeamPlace place_;
  std::vector<std::byte> image_;  // the context, its extension, then what it points to
  base::Buffer memory_;           // the same for the GPU
};

}  // namespace verbena::symm
