// A writer and two readers over three slots, of the ring that ships, a step at a time: each access to a
// shared word is a step. Stores wait in a buffer of their actor's before others see them, as x86 has it
// (TSO), so that what needs a fence is found to need it. What other processors reorder besides is not
// modelled.
//
// An operation of the ring is a plain function. To take one step of it, it runs anew from its beginning, is
// given the values that it read before, and performs one access more. What it does from the next access on is
// undone.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <utility>

#include "device/message_queue/ring.h"

namespace verbena::message_queue {
constexpr uint32_t kSlots = 3, kReaders = 2;
enum Word : uint8_t {
  kPublished,
  kData = kPublished + kSlots,  // a slot's message
  kReleased = kData + kSlots,
  kSleepers = kReleased + kReaders,
  kBell,
  kWriterSleeps,
  kWriterBell,
  kEnded,
  kInterrupts,  // of readers 0 and 1 and of the writer
  kWords = kInterrupts + kReaders + 1,
  kNone
};
constexpr uint8_t kWriter = kReaders, kActors = kReaders + 1;
constexpr uint8_t kLeftByte = 255;

struct Faults {
  bool has_no_fence = false;
  bool publishes_early = false;
  bool never_wakes_writer = false;
};

class Player;
inline Player* g_player = nullptr;

// A word with std::atomic's interface.
template <typename T>
struct Cell {
  uint8_t word;
  T load(std::memory_order) const;
  void store(T value, std::memory_order) const;
  T fetch_or(T value, std::memory_order) const;
  T fetch_and(T value, std::memory_order) const;
  T fetch_add(T value, std::memory_order) const;
};

struct Memory {
  using Long = Cell<uint64_t>;
  using Short = Cell<uint32_t>;
  static constexpr uint32_t count_readers() { return kReaders; }
  static constexpr uint32_t count_slots() { return kSlots; }
  static Long at(uint32_t word) { return {static_cast<uint8_t>(word)}; }
  Long published(uint32_t slot) const { return at(kPublished + slot); }
  Long released(uint32_t reader) const { return at(kReleased + reader); }
  // Only told in errors: no step.
  struct Untold {
    void store(uint64_t, std::memory_order) const {}
  };
  Untold taken(uint32_t) const { return {}; }
  Long& sleepers(uint32_t) { return sleepers_; }
  Short& bell() { return bell_; }
  Short& writer_sleeps() { return writer_sleeps_; }
  Short& writer_bell() { return writer_bell_; }
  Short& ended() { return ended_; }
  void fence();
  SleepEnd sleep(const Short& word, uint32_t heard, int64_t);
  void wake(const Short& word);

 private:
  Long sleepers_{kSleepers};
  Short bell_{kBell}, writer_sleeps_{kWriterSleeps}, writer_bell_{kWriterBell}, ended_{kEnded};
};

enum class Life : uint8_t { kRuns, kSleeps, kDone, kDead };

// A vector without allocation.
template <typename T, size_t kMost>
class Few {
 public:
  void push_back(T value) { values_.at(count_++) = value; }
  void erase_first() { std::move(begin() + 1, end(), values_.begin()), --count_; }
  void clear() { count_ = 0; }
  bool empty() const { return count_ == 0; }
  size_t size() const { return count_; }
  T operator[](size_t i) const { return values_[i]; }
  const T* begin() const { return values_.data(); }
  const T* end() const { return begin() + count_; }

 private:
  std::array<T, kMost> values_{};
  uint8_t count_ = 0;
};

struct Actor {
  Life life = Life::kRuns;
  uint8_t sleeps_on = 0;
  bool is_noticed = false;                     // dead, and the others were told
  Few<std::pair<uint8_t, uint8_t>, 24> read;   // in the operation under way: word, value
  Few<std::pair<uint8_t, uint8_t>, 8> stores;  // not seen by others yet, the oldest first
};

struct Key {
  uint64_t a = 0xcbf2'9ce4'8422'2325, b = 0x9e37'79b9'7f4a'7c15;
  void add(uint64_t value) {
    a = (a ^ value) * 0x100'0000'01b3;
    b = (b + value + 1) * 0xff51'afd7'ed55'8ccd;
    b ^= b >> 32;
  }
  bool operator==(const Key&) const = default;
};
struct KeyHash {
  size_t operator()(const Key& key) const { return key.b; }
};

struct State {
  std::array<uint8_t, kWords> words{};
  std::array<Actor, kActors> actors;
  RingWriter<Memory> writer{Memory()};
  std::array<RingReader<Memory>, kReaders> readers{RingReader<Memory>(Memory(), 0),
                                                   RingReader<Memory>(Memory(), 1)};
  uint8_t kills = 0;

  // Two hashes of 64 bits stand for all of it: that two of 10^8 states share both has odds of 1 in 10^22.
  Key key() const {
    Key key;
    // A bell is a counter: only the difference since its last reading matters.
    const auto is_bell = [](uint8_t word) { return word == kBell || word == kWriterBell; };
    for (uint8_t word = 0; word < kWords; ++word) key.add(is_bell(word) ? 0 : words[word]);
    for (const Actor& actor : actors) {
      for (const size_t value : {size_t(actor.life), size_t(actor.sleeps_on), size_t(actor.is_noticed),
                                 actor.read.size(), actor.stores.size()})
        key.add(value);
      for (const auto& [word, value] : actor.read) key.add(is_bell(word) ? value == words[word] : value);
      for (const auto& [word, value] : actor.stores) key.add(word), key.add(value);
    }
    for (const uint64_t value :
         {writer.next(), writer.free_until(), uint64_t{writer.is_dropped(0)}, uint64_t{writer.is_dropped(1)},
          uint64_t{kills}, readers[0].next(), readers[1].next()})
      key.add(value);
    return key;
  }
};

// Runs one step of one actor.
class Player {
 public:
  Player(State& state, uint8_t actor, const Faults& faults)
      : state_(state), actor_(actor), known_(state.actors[actor].read), faults_(faults) {
    g_player = this;
  }
  ~Player() { g_player = nullptr; }

  uint8_t load(uint8_t word) {
    return access(word, [&] {
      const auto& stores = self().stores;
      for (size_t i = stores.size(); i-- > 0;)
        if (stores[i].first == word) return stores[i].second;
      return state_.words[word];
    });
  }
  // Into the actor's own buffer, which no other actor sees: not a separate step.
  void store(uint8_t word, uint8_t value) {
    if (is_repeating()) {
      ++position_;
      return;
    }
    if (is_paused_) return;
    self().stores.push_back({word, value});
    note(word, 0);
  }
  template <typename Change>
  uint8_t change(uint8_t word, const Change& changed) {
    return access(word, [&] {
      drain();
      const uint8_t before = state_.words[word];
      state_.words[word] = changed(before);
      return before;
    });
  }
  void fence() {
    if (faults_.has_no_fence) return;
    if (!is_repeating() && !is_paused_ && self().stores.empty()) return note(kNone, 0);
    access(kNone, [&] {
      drain();
      return uint8_t{0};
    });
  }
  void sleep(uint8_t word, uint8_t heard) {
    access(kNone, [&] {
      drain();
      if (state_.words[word] == heard) {
        self().life = Life::kSleeps;
        self().sleeps_on = word;
        is_paused_ = true;  // its result is noted when it is woken
      }
      return uint8_t{0};
    });
  }
  void wake(uint8_t word) {
    if (word == kWriterBell && faults_.never_wakes_writer) return;
    access(kNone, [&] {
      drain();
      for (Actor& other : state_.actors) {
        if (other.life != Life::kSleeps || other.sleeps_on != word) continue;
        other.life = Life::kRuns;
        other.read.push_back({kNone, 0});
      }
      return uint8_t{0};
    });
  }

  // The operation is not over.
  bool is_paused() const { return is_paused_; }

 private:
  Actor& self() { return state_.actors[actor_]; }
  void drain() {
    for (const auto& [word, value] : self().stores) state_.words[word] = value;
    self().stores.clear();
  }
  bool is_repeating() const { return position_ < known_.size(); }
  void note(uint8_t word, uint8_t value) {
    ++position_;
    self().read.push_back({word, value});
  }
  template <typename Perform>
  uint8_t access(uint8_t word, const Perform& perform) {
    if (is_repeating()) return known_[position_++].second;
    is_paused_ = is_paused_ || has_stepped_;
    if (is_paused_) return 0;
    has_stepped_ = true;
    const uint8_t value = perform();
    if (!is_paused_) note(word, value);
    return value;
  }

  State& state_;
  uint8_t actor_;
  Few<std::pair<uint8_t, uint8_t>, 24> known_;
  const Faults& faults_;
  size_t position_ = 0;
  bool has_stepped_ = false, is_paused_ = false;
};

template <typename T>
uint8_t shorten(T value) {
  return static_cast<uint8_t>(value);
}
template <typename T>
T Cell<T>::load(std::memory_order) const {
  const uint8_t value = g_player->load(word);
  return value == kLeftByte ? static_cast<T>(kLeft) : value;
}
template <typename T>
void Cell<T>::store(T value, std::memory_order) const {
  g_player->store(word, shorten(value));
}
template <typename T>
T Cell<T>::fetch_or(T value, std::memory_order) const {
  return g_player->change(word, [&](uint8_t before) { return shorten(before | value); });
}
template <typename T>
T Cell<T>::fetch_and(T value, std::memory_order) const {
  return g_player->change(word, [&](uint8_t before) { return shorten(before & value); });
}
template <typename T>
T Cell<T>::fetch_add(T value, std::memory_order) const {
  return g_player->change(word, [&](uint8_t before) { return shorten(before + value); });
}
inline void Memory::fence() {
  g_player->fence();
}
inline SleepEnd Memory::sleep(const Short& word, uint32_t heard, int64_t) {
  g_player->sleep(word.word, shorten(heard));
  return SleepEnd::kLookAgain;
}
inline void Memory::wake(const Short& word) {
  g_player->wake(word.word);
}

}  // namespace verbena::message_queue
