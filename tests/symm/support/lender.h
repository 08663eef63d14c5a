// Another library's symmetric memory, as a test has it: a heap a rank, all in one piece of memory, full of
// something else than zeros; and who has given his back.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "verbena/symm_abi.h"

namespace verbena::symm {

class Lender {
 public:
  static constexpr uint32_t kMaxRanks = 16;
  static constexpr uint64_t kLineBytes = 8192;  // the stub counts arrivals there
  static constexpr std::byte kRubbish{0xA5};

  // Loads and stores reach ranks of the same `domain`, so many behind each other. Heaps are `length_bytes`
  // apart and a line, in which each has its own tail of zeros.
  Lender(uint32_t count_ranks, uint32_t domain, uint64_t length_bytes)
      : count_ranks_(count_ranks),
        domain_(domain),
        stride_bytes_((length_bytes + 2 * kLineBytes - 1) / kLineBytes * kLineBytes),
        length_bytes_(length_bytes),
        memory_((count_ranks + 1) * stride_bytes_, kRubbish) {
    for (uint32_t rank = 0; rank < count_ranks; ++rank)
      std::memset(begin(rank) + length_bytes, 0, stride_bytes_ - length_bytes);
  }

  uint32_t count_ranks() const { return count_ranks_; }
  uint64_t length_bytes() const { return length_bytes_; }
  std::byte* begin(uint32_t rank) {
    const auto first = reinterpret_cast<uintptr_t>(memory_.data());
    return memory_.data() + (kLineBytes - first % kLineBytes) + rank * stride_bytes_;
  }
  bool reaches(uint32_t rank, uint32_t peer) const { return rank / domain_ == peer / domain_; }
  int64_t distance(uint32_t rank, uint32_t peer) { return begin(peer) - begin(rank); }
  std::vector<int64_t> find_deltas(uint32_t rank) {
    std::vector<int64_t> deltas;
    for (uint32_t peer = 0; peer < count_ranks_; ++peer)
      deltas.push_back(reaches(rank, peer) ? distance(rank, peer) : kSymmOutOfReach);
    return deltas;
  }

  // For verbena_heap: how often a rank's was given back.
  void* argument(uint32_t rank) { return &returns_[rank]; }
  static void take_back(void* argument) { ++*static_cast<std::atomic<int>*>(argument); }
  int count_returns(uint32_t rank) const { return returns_[rank]; }

 private:
  uint32_t count_ranks_, domain_;
  uint64_t stride_bytes_, length_bytes_;
  std::vector<std::byte> memory_;
  std::array<std::atomic<int>, kMaxRanks> returns_{};
};

}  // namespace verbena::symm
