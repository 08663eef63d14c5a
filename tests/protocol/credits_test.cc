#include "protocol/credits.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "protocol/random.h"

namespace verbena::protocol {
namespace {

// A sender, a receiver, and the two ways of returning credits: credit lines, which may arrive late, twice and
// out of order, and credit notes in grants, which arrive in order; of several, only the newest may be seen.
class CreditPair {
 public:
  CreditPair(uint64_t seed, uint32_t pairs, uint32_t window) : random_(seed), pairs_(pairs), window_(window) {
    for (uint32_t q = 0; q < pairs; ++q) {
      sender_.set_window(q, window);
      receiver_.set_window(q, window);
    }
  }

  void send_some() {
    const uint32_t q = random_.between(0, pairs_ - 1);
    for (uint32_t wanted = random_.between(1, window_); wanted != 0 && sender_.available(q) != 0; --wanted) {
      sender_.take(q);
      ++held_[q];
    }
    // What the receiver promised: entries in use and entries posted are the window.
    ASSERT_LE(held_[q], window_);
  }

  void give_some_back() {
    const uint32_t q = random_.between(0, pairs_ - 1);
    for (uint32_t count = held_[q] == 0 ? 0 : random_.between(1, held_[q]); count != 0; --count) {
      receiver_.give_back(q, 1);
      --held_[q];
    }
    if (receiver_.is_update_due(consumed_)) lines_.push_back(receiver_.take_update(consumed_));
  }

  // Any line that was ever sent.
  void deliver_any() {
    if (lines_.empty()) return;
    ASSERT_NO_FATAL_FAILURE(deliver(lines_[random_.between(0, static_cast<uint32_t>(lines_.size()) - 1)]));
  }
  void deliver_newest() {
    if (!lines_.empty()) deliver(lines_.back());
  }

  void grant_some() {
    for (uint32_t count = random_.between(0, 3); count != 0; --count)
      notes_.push_back(receiver_.take_note(consumed_, pairs_ / 2));
  }
  void read_some_notes() {
    if (notes_.empty()) return;
    const uint32_t read = random_.between(0, static_cast<uint32_t>(notes_.size()));
    const uint32_t skipped = random_.between(0, read);
    for (uint32_t i = skipped; i < read; ++i) ASSERT_NO_FATAL_FAILURE(deliver(notes_[i]));
    // What takes the place of skipped ones is newer than they.
    if (read != 0) {
      ASSERT_NO_FATAL_FAILURE(deliver(notes_[read - 1]));
    }
    notes_.erase(notes_.begin(), notes_.begin() + read);
  }

  void drain() {
    for (uint32_t q = 0; q < pairs_; ++q) {
      for (; held_[q] != 0; --held_[q]) receiver_.give_back(q, 1);
    }
    if (receiver_.is_update_due(consumed_)) lines_.push_back(receiver_.take_update(consumed_));
    deliver_newest();
    for (; !notes_.empty(); notes_.pop_front()) ASSERT_NO_FATAL_FAILURE(deliver(notes_.front()));
  }

  // With nothing held back, a quarter of each window at most is not known to the sender.
  void expect_not_starved() const {
    for (uint32_t q = 0; q < pairs_; ++q) {
      ASSERT_GT(sender_.available(q) * 4, window_ * 3) << "queue pair " << q << ", window " << window_;
      ASSERT_LE(sender_.available(q), window_);
    }
  }

 private:
  void deliver(const CreditLine& line) {
    for (uint32_t q = 0; q < pairs_; ++q) {
      ASSERT_TRUE(sender_.absorb(q, line.returned[q]));
      ASSERT_LE(sender_.available(q), window_);
    }
  }

  void deliver(const CreditNote& note) {
    const uint32_t q = note.queue_pair();
    ASSERT_EQ(q, pairs_ / 2);
    ASSERT_TRUE(sender_.absorb(q, note.expand_returned(sender_.returned(q))));
    ASSERT_LE(sender_.available(q), window_);
  }

  Random random_;
  uint32_t pairs_, window_;
  SenderCredits sender_;
  ReceiverCredits receiver_;
  uint32_t held_[kMaxQueuePairs] = {};
  uint32_t consumed_ = 0;
  std::vector<CreditLine> lines_;
  std::deque<CreditNote> notes_;
};

// `has_notes`: grants carry some of the credits, and few lines are delivered.
void expect_never_starved(bool has_notes) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Random shape(seed);
    CreditPair pair(seed, shape.between(1, kMaxQueuePairs), 1U << shape.between(2, 8));
    for (int round = 0; round < 200; ++round) {
      ASSERT_NO_FATAL_FAILURE(pair.send_some()) << "seed " << seed;
      pair.give_some_back();
      if (has_notes) {
        pair.grant_some();
        ASSERT_NO_FATAL_FAILURE(pair.read_some_notes()) << "seed " << seed;
      }
      if (!has_notes || shape.between(0, 3) == 0) {
        ASSERT_NO_FATAL_FAILURE(pair.deliver_any()) << "seed " << seed;
      }
      if (round % 20 != 19) continue;
      ASSERT_NO_FATAL_FAILURE(pair.drain()) << "seed " << seed;
      ASSERT_NO_FATAL_FAILURE(pair.expect_not_starved()) << "seed " << seed;
    }
  }
}

TEST(Credits, ASenderIsNeverStarvedAndNeverOverdraws) {
  expect_never_starved(false);
}

TEST(Credits, NotesOnGrantsTellAsWellAsLines) {
  expect_never_starved(true);
}

TEST(Credits, ANoteExpandsToTheNearestCounter) {
  for (const uint32_t known : {0U, 100U, 0xFFFFFFU, 0x1000000U, 0xFFFFFFFFU}) {
    for (const int32_t ahead : {-4096, -1, 0, 1, 4096}) {
      const uint32_t returned = known + static_cast<uint32_t>(ahead);
      const CreditNote note = CreditNote::make(7, 5, returned);
      EXPECT_EQ(note.queue_pair(), 5U);
      EXPECT_EQ(note.expand_returned(known), returned) << known << " " << ahead;
    }
  }
}

TEST(Credits, ANoteLeavesNothingDueThatItSays) {
  ReceiverCredits receiver;
  for (uint32_t q = 0; q < 2; ++q) receiver.set_window(q, 8);
  receiver.give_back(0, 2);
  receiver.give_back(1, 3);
  ASSERT_TRUE(receiver.is_update_due(0));
  EXPECT_EQ(receiver.take_note(0, 1).expand_returned(0), 3U);
  EXPECT_TRUE(receiver.is_update_due(0)) << "the other one is due still";
  EXPECT_EQ(receiver.take_note(0, 0).expand_returned(0), 2U);
  EXPECT_FALSE(receiver.is_update_due(0));
}

TEST(Credits, EverySingleEntryOfASmallWindowIsReported) {
  for (uint32_t window = 1; window <= 4; ++window) {
    SenderCredits sender;
    ReceiverCredits receiver;
    sender.set_window(0, window);
    receiver.set_window(0, window);
    for (int i = 0; i < 100; ++i) {
      ASSERT_NE(sender.available(0), 0U);
      sender.take(0);
      receiver.give_back(0, 1);
      ASSERT_TRUE(receiver.is_update_due(0));
      ASSERT_TRUE(sender.absorb(0, receiver.take_update(0).returned[0]));
    }
  }
}

TEST(Credits, ConsumedMessagesAreReportedBeforeTheRingIsFull) {
  ReceiverCredits receiver;
  receiver.set_window(0, 1000);
  uint32_t told = 0;
  for (uint32_t consumed = 0; consumed < 1000; ++consumed) {
    if (receiver.is_update_due(consumed)) told = receiver.take_update(consumed).consumed;
    ASSERT_LT(consumed - told, kMessageRing / 2);
  }
}

TEST(Credits, NothingIsDueWithoutNews) {
  ReceiverCredits receiver;
  for (uint32_t q = 0; q < kMaxQueuePairs; ++q) receiver.set_window(q, 8);
  EXPECT_FALSE(receiver.is_update_due(0));
  receiver.give_back(3, 1);
  receiver.give_back(3, 1);
  ASSERT_TRUE(receiver.is_update_due(0));
  EXPECT_EQ(receiver.take_update(0).returned[3], 2U);
  EXPECT_FALSE(receiver.is_update_due(0)) << "it was told";
}

TEST(Credits, APeerThatReturnsMoreThanItGotIsCaught) {
  SenderCredits sender;
  sender.set_window(0, 8);
  EXPECT_FALSE(sender.absorb(0, 1)) << "nothing was taken";
  EXPECT_EQ(sender.available(0), 8U);
  for (int i = 0; i < 5; ++i) sender.take(0);
  EXPECT_FALSE(sender.absorb(0, 6));
  EXPECT_EQ(sender.available(0), 3U) << "a lie changes nothing";
  EXPECT_TRUE(sender.absorb(0, 5));
  EXPECT_EQ(sender.available(0), 8U);
  EXPECT_TRUE(sender.absorb(0, 2)) << "an old line is no lie";
  EXPECT_EQ(sender.available(0), 8U);
}

}  // namespace
}  // namespace verbena::protocol
