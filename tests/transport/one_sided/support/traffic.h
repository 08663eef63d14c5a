// Rounds of traffic between all ranks of a group, each verified: every rank puts to every rank, its own too,
// over each lane, bytes, then a flag with the round's number, and an add to a word that all ranks add to.
// Whoever sees the flag finds the bytes; the word is the sum.
#pragma once

#include "protocol/lane_core.h"
#include "transport/one_sided/support/group.h"

namespace verbena::transport {

using Ranks = std::vector<std::unique_ptr<Rank>>;

// All of them poll, as the drivers of all ranks do; false after the patience.
bool poll_all(Ranks& ranks, const std::function<bool()>& done);
protocol::LaneCounts count_failures(const Ranks& ranks);

class Traffic {
 public:
  static constexpr size_t kRegionBytes = 8 << 20;
  static constexpr size_t kSums = 4096;  // where the word is that all add to

  Traffic(Ranks& ranks, uint32_t lanes, size_t most_bytes)
      : ranks_(ranks), lanes_(lanes), most_bytes_(most_bytes) {}

  // The next round; false, with a failed expectation, if it does not end or something is not as it has to be.
  bool play();
  // Every word is what was added to it, and nobody has failed.
  void expect_sums() const;

 private:
  size_t slot_of(uint32_t from, uint32_t lane) const {
    return (size_t{1} << 20) + (size_t{from} * lanes_ + lane) * most_bytes_;
  }
  size_t flag_of(uint32_t from, uint32_t lane) const { return (from * lanes_ + lane) * 64; }
  void post(Rank& from, size_t length);
  template <typename Act>
  bool for_all(const Act& act) const;

  Ranks& ranks_;
  const uint32_t lanes_;
  const size_t most_bytes_;
  uint64_t round_ = 0, addends_ = 0;
};

}  // namespace verbena::transport
