// Every interleaving of one writer and two readers over three slots: each step of each actor is tried in each
// state, and each actor may be killed before any of its steps. Of the ring that ships: support/ring_machine.h
// says how.
#include <gtest/gtest.h>

#include <iostream>
#include <string>
#include <unordered_set>
#include <vector>

#include "message_queue/support/ring_machine.h"

namespace verbena::message_queue {
namespace {

class Exploration {
 public:
  Exploration(uint8_t messages, uint8_t most_kills, Faults faults = {})
      : messages_(messages), most_kills_(most_kills), faults_(faults) {}

  // What is wrong, or nothing. The first finding ends it.
  std::string run() {
    std::vector<State> open{State()};
    seen_.insert(open.back().key());
    while (!open.empty() && finding_.empty()) {
      const State state = std::move(open.back());
      open.pop_back();
      size_t ways = 0;
      const auto go_on = [&](State next) {
        ++ways;
        if (seen_.insert(next.key()).second) open.push_back(std::move(next));
      };
      for (uint8_t actor = 0; actor < kActors; ++actor) follow(state, actor, go_on);
      if (ways == 0) check_end(state);
    }
    return finding_;
  }

  size_t count_states() const { return seen_.size(); }
  size_t count_ends() const { return ends_; }

 private:
  template <typename GoOn>
  void follow(const State& state, uint8_t actor, const GoOn& go_on) {
    const Actor& self = state.actors[actor];
    if (!self.stores.empty()) {  // its oldest store becomes visible
      State next = state;
      auto& stores = next.actors[actor].stores;
      next.words[stores[0].first] = stores[0].second;
      stores.erase_first();
      go_on(std::move(next));
    }
    if (self.life == Life::kRuns) {
      State next = state;
      step(next, actor);
      go_on(std::move(next));
    }
    if ((self.life == Life::kRuns || self.life == Life::kSleeps) && state.kills < most_kills_) {
      State next = state;
      next.actors[actor].life = Life::kDead;
      next.actors[actor].read.clear();
      ++next.kills;
      go_on(std::move(next));
    }
    // The kernel reports a death after the dead process's writes are complete.
    if (self.life == Life::kDead && !self.is_noticed && self.stores.empty()) {
      State next = state;
      next.actors[actor].is_noticed = true;
      tell(next, actor);
      go_on(std::move(next));
    }
  }

  // What the watch of each living process does, at once: its interrupt is set, then its bell rung.
  static void tell(State& state, uint8_t dead) {
    for (uint8_t told = 0; told < kActors; ++told) {
      if (dead != kWriter && told != kWriter) continue;  // readers do not care for each other
      state.words[kInterrupts + told] |= static_cast<uint8_t>(1 << dead);
    }
    const uint8_t bell = dead == kWriter ? kBell : kWriterBell;
    ++state.words[bell];
    for (Actor& other : state.actors) {
      if (other.life != Life::kSleeps || other.sleeps_on != bell) continue;
      other.life = Life::kRuns;
      other.read.push_back({kNone, 0});
    }
  }

  void step(State& state, uint8_t actor) {
    const auto writer = state.writer;
    const auto readers = state.readers;
    Player player(state, actor, faults_);
    std::string finding;
    const bool is_done = actor == kWriter ? write(state.writer) : read(state.readers[actor], finding);
    if (player.is_paused()) {
      state.writer = writer;
      state.readers = readers;
      return;
    }
    state.actors[actor].read.clear();
    if (is_done) state.actors[actor].life = Life::kDone;
    if (!finding.empty()) finding_ = finding;
  }

  // One operation of the writer's; whether it was the last.
  bool write(RingWriter<Memory>& ring) {
    const Cell<uint64_t> interrupt{static_cast<uint8_t>(kInterrupts + kWriter)};
    if (ring.next() == messages_) {
      ring.end();
      return true;
    }
    const uint64_t dead = most_kills_ == 0 ? 0 : interrupt.fetch_and(0, std::memory_order_acquire);
    for (uint32_t reader = 0; reader < kReaders; ++reader)
      if ((dead >> reader & 1) != 0) ring.drop(reader);
    if (!ring.can_write()) {
      ring.sleep(interrupt, 0);
      return false;
    }
    const uint32_t slot = ring.slot();
    const uint64_t message = ring.next() + 1;
    if (faults_.publishes_early) ring.publish();
    Memory::at(kData + slot).store(message, std::memory_order_relaxed);
    if (!faults_.publishes_early) ring.publish();
    return false;
  }

  bool read(RingReader<Memory>& ring, std::string& finding) {
    const Cell<uint64_t> interrupt{static_cast<uint8_t>(kInterrupts + ring.number())};
    const Look look = ring.look();
    if (look == Look::kEnd) {
      ring.leave();
      return true;
    }
    if (look == Look::kNothing) {
      if (interrupt.load(std::memory_order_acquire) == 0) {
        ring.sleep(interrupt, 0);
        return false;
      }
      if (ring.look() != Look::kMessage) return true;  // the writer is dead, and what it published is read
    }
    const uint32_t slot = ring.slot();
    const uint64_t message = ring.take() + 1;
    const uint64_t data = Memory::at(kData + slot).load(std::memory_order_relaxed);
    ring.release(message);
    if (data != message) finding = "message " + std::to_string(message) + " reads as " + std::to_string(data);
    return false;
  }

  void check_end(const State& state) {
    ++ends_;
    const bool writer_died = state.actors[kWriter].life == Life::kDead;
    if (!writer_died && state.actors[kWriter].life != Life::kDone) finding_ = "the writer sleeps for ever";
    for (uint8_t reader = 0; reader < kReaders; ++reader) {
      const Life life = state.actors[reader].life;
      if (life == Life::kDead) continue;
      uint64_t published = 0;
      for (uint32_t slot = 0; slot < kSlots; ++slot)
        published = std::max<uint64_t>(published, state.words[kPublished + slot]);
      const std::string name = "reader " + std::to_string(reader);
      if (life != Life::kDone) finding_ = name + " sleeps for ever";
      if (life == Life::kDone && state.readers[reader].next() != published)
        finding_ = name + " lost messages";
      if (!writer_died && published != messages_) finding_ = "not everything was published";
    }
  }

  uint8_t messages_, most_kills_;
  Faults faults_;
  std::unordered_set<Key, KeyHash> seen_;
  size_t ends_ = 0;
  std::string finding_;
};

void explore(uint8_t messages, uint8_t most_kills) {
  Exploration exploration(messages, most_kills);
  EXPECT_EQ(exploration.run(), "");
  EXPECT_GT(exploration.count_ends(), 0u);
  std::cout << exploration.count_states() << " states, " << exploration.count_ends() << " ends\n";
}

// Four messages: the first slot is written again.
TEST(RingExploration, EveryoneLives) {
  explore(4, 0);
}
TEST(RingExploration, AnyoneIsKilledAnywhere) {
  explore(2, 2);
}
TEST(RingExploration, OneIsKilledAnywhereOverTheEnd) {
  explore(4, 1);
}
TEST(RingExploration, TwoAreKilledAnywhereOverTheEnd) {
  explore(4, 2);
}

// What the exploration is there for, it finds.
TEST(RingExploration, FindsWhatIsWrong) {
  EXPECT_NE(Exploration(4, 0, {.has_no_fence = true}).run(), "");
  EXPECT_NE(Exploration(4, 0, {.publishes_early = true}).run(), "");
  EXPECT_NE(Exploration(4, 0, {.never_wakes_writer = true}).run(), "");
}

}  // namespace
}  // namespace verbena::message_queue
