#include "transport/one_sided/support/traffic.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "transport/one_sided/one_sided_endpoint.h"

namespace verbena::transport {

namespace {

constexpr size_t kSource = 4 << 20;

}  // namespace

bool poll_all(Ranks& ranks, const std::function<bool()>& done) {
  const auto deadline = base::Deadline::after_ms(Rank::kPatienceMs);
  while (!done()) {
    for (const auto& rank : ranks) {
      rank->endpoint().ring();
      rank->poll();
    }
    if (deadline.has_passed()) return false;
  }
  return true;
}

protocol::LaneCounts count_failures(const Ranks& ranks) {
  protocol::LaneCounts sum;
  for (const auto& rank : ranks) {
    const auto counts = static_cast<OneSidedEndpoint&>(rank->endpoint()).count_failures();
    sum.failed_queue_pairs += counts.failed_queue_pairs;
    sum.revived_queue_pairs += counts.revived_queue_pairs;
    sum.replayed_requests += counts.replayed_requests;
  }
  return sum;
}

// Whether `act(to, from, lane)` is true for all.
template <typename Act>
bool Traffic::for_all(const Act& act) const {
  for (const auto& to : ranks_)
    for (uint32_t from = 0; from < ranks_.size(); ++from)
      for (uint32_t lane = 0; lane < lanes_; ++lane)
        if (!act(*to, from, lane)) return false;
  return true;
}

void Traffic::post(Rank& from, size_t length) {
  fill(from.memory().subspan(kSource, length), round_);
  for (uint32_t to = 0; to < ranks_.size(); ++to) {
    for (uint32_t lane = 0; lane < lanes_; ++lane) {
      const size_t slot = slot_of(from.rank(), lane), flag = flag_of(from.rank(), lane);
      verbena::Endpoint& endpoint = from.endpoint();
      EXPECT_EQ(endpoint.put({to, lane, kRegion, kRegion, kSource, slot, length}, 0), Posting::kTaken);
      EXPECT_EQ(endpoint.write_word({to, lane, kRegion, flag}, round_, 0), Posting::kTaken);
      EXPECT_EQ(endpoint.add_word({to, lane, kRegion, kSums}, round_, round_), Posting::kTaken);
    }
  }
}

bool Traffic::play() {
  ++round_;
  const size_t length = 1 + round_ * 7919 % most_bytes_;
  for (const auto& from : ranks_) post(*from, length);
  addends_ += ranks_.size() * lanes_ * round_;
  const bool is_here = poll_all(ranks_, [&] {
    return for_all([&](Rank& to, uint32_t from, uint32_t lane) {
      return to.word(flag_of(from, lane)).load(std::memory_order_acquire) == round_;
    });
  });
  const bool is_right = for_all([&](Rank& to, uint32_t from, uint32_t lane) {
    return holds(to.memory().subspan(slot_of(from, lane), length), round_);
  });
  const bool is_told = poll_all(ranks_, [&] {
    return for_all([&](Rank& to, uint32_t from, uint32_t lane) {
      return ranks_[from]->count_done(to.rank(), lane) == 3 * round_;
    });
  });
  EXPECT_TRUE(is_here && is_right && is_told) << "round " << round_ << ": " << is_here << is_right << is_told;
  return is_here && is_right && is_told && !testing::Test::HasFailure();
}

void Traffic::expect_sums() const {
  for (const auto& rank : ranks_) {
    EXPECT_EQ(rank->word(kSums).load(), addends_);
    for (uint32_t peer = 0; peer < ranks_.size(); ++peer) EXPECT_EQ(rank->endpoint().error(peer), "");
  }
}

}  // namespace verbena::transport
