// The ring between one writer and its readers. It tracks which slots are free, published and released, and
// who sleeps. It is a template over the memory of its words, so that a model checker can run every
// interleaving of this code. It has no locks: a reader that is stopped or killed at any instruction leaves
// words with which the other processes can continue.
//
// Message n lies in slot n % count_slots. One process writes each word, except `sleepers` and the bells:
//
// - published(slot), by the writer: n + 1 once message n lies there. Release: the bytes are written before.
// - released(reader), by the reader: how many messages it has released; kLeft once it has left. Release: its
//   reads are done before.
// - sleepers, by readers: a bit for each that sleeps or is about to. bell: the futex that they sleep on.
// - writer_sleeps, by the writer: set while it sleeps or is about to. writer_bell: the futex that it sleeps
//   on.
// - ended, by the writer: no message follows.
//
// No wake-up is lost. A thread that is about to sleep sets its bit and then checks for changes once more. A
// thread that changes something publishes the change and then checks for sleepers. On both sides a
// sequentially consistent fence separates the two steps, so at least one side sees the other. The sleeper
// reads the bell before its last check; if the bell is rung after that, the sleep returns at once.
//
// The parameter Memory provides the words as lvalues with std::atomic's interface, and the functions
// count_readers(), count_slots(), fence() (sequentially consistent), sleep(word, value, deadline_ns) and
// wake(word).
#pragma once

#include <atomic>
#include <bitset>
#include <cstdint>
#include <limits>

namespace verbena::message_queue {

inline constexpr uint64_t kLeft = std::numeric_limits<uint64_t>::max();
inline constexpr uint32_t kReadersPerWord = 64;
inline constexpr uint32_t kMaxReaders = 256;

enum class Look : uint8_t { kNothing, kMessage, kEnd };

enum class SleepEnd : uint8_t {
  kLookAgain,  // woken, something changed already, or a spurious wake-up
  kDeadline,
  kSignal,  // a signal handler ran in this thread
};

template <typename Memory>
class RingWriter {
 public:
  explicit RingWriter(Memory memory) : memory_(memory) {}

  Memory& memory() { return memory_; }
  const Memory& memory() const { return memory_; }
  // The number of the next message to write, and its slot.
  uint64_t next() const { return next_; }
  uint32_t slot() const { return static_cast<uint32_t>(next_ % memory_.count_slots()); }

  // Returns whether every reader has released that slot.
  bool can_write() {
    if (next_ < free_until_) return true;
    uint64_t oldest = next_;
    for (uint32_t reader = 0; reader < memory_.count_readers(); ++reader) {
      if (is_dropped_[reader]) continue;
      const uint64_t released = memory_.released(reader).load(std::memory_order_acquire);
      if (released < oldest) oldest = released;
    }
    free_until_ = oldest + memory_.count_slots();
    return next_ < free_until_;
  }

  // Publishes the slot. Call it after can_write() has returned true and the slot's bytes are written.
  void publish() {
    memory_.published(slot()).store(next_ + 1, std::memory_order_release);
    ++next_;
    ring_readers();
  }

  void end() {
    memory_.ended().store(1, std::memory_order_release);
    ring_readers();
  }

  // Sleeps until a slot may be free or `interrupt` may have become nonzero.
  template <typename Word>
  SleepEnd sleep(const Word& interrupt, int64_t deadline_ns) {
    memory_.writer_sleeps().store(1, std::memory_order_relaxed);
    const uint32_t heard = memory_.writer_bell().load(std::memory_order_acquire);
    memory_.fence();
    SleepEnd end = SleepEnd::kLookAgain;
    if (!can_write() && interrupt.load(std::memory_order_acquire) == 0) {
      end = memory_.sleep(memory_.writer_bell(), heard, deadline_ns);
    }
    memory_.writer_sleeps().store(0, std::memory_order_relaxed);
    return end;
  }

  // Wakes a sleeping writer. Call it after setting the writer's interrupt word. Any thread may call it.
  static void interrupt(Memory& memory) {
    memory.writer_bell().fetch_add(1, std::memory_order_release);
    memory.wake(memory.writer_bell());
  }

  // Removes a dead reader: the writer no longer waits for it or wakes it.
  void drop(uint32_t reader) {
    is_dropped_[reader] = true;
    free_until_ = 0;
    const uint64_t bit = uint64_t{1} << (reader % kReadersPerWord);
    memory_.sleepers(reader / kReadersPerWord).fetch_and(~bit, std::memory_order_relaxed);
  }
  bool is_dropped(uint32_t reader) const { return is_dropped_[reader]; }
  uint64_t free_until() const { return free_until_; }

 private:
  void ring_readers() {
    memory_.fence();
    bool is_asleep = false;
    for (uint32_t word = 0; word * kReadersPerWord < memory_.count_readers(); ++word) {
      is_asleep = is_asleep || memory_.sleepers(word).load(std::memory_order_relaxed) != 0;
    }
    if (!is_asleep) return;
    memory_.bell().fetch_add(1, std::memory_order_release);
    memory_.wake(memory_.bell());
  }

  Memory memory_;
  uint64_t next_ = 0;
  uint64_t free_until_ = 0;  // messages with lower numbers can be written without checking the readers
  std::bitset<kMaxReaders> is_dropped_;
};

template <typename Memory>
class RingReader {
 public:
  RingReader(Memory memory, uint32_t reader) : memory_(memory), reader_(reader) {}

  Memory& memory() { return memory_; }
  const Memory& memory() const { return memory_; }
  uint32_t number() const { return reader_; }
  uint64_t next() const { return next_; }
  uint32_t slot() const { return static_cast<uint32_t>(next_ % memory_.count_slots()); }

  // Returns kMessage if the next message is in its slot, or kEnd if no further message will come.
  Look look() {
    if (can_read()) return Look::kMessage;
    if (memory_.ended().load(std::memory_order_acquire) == 0) return Look::kNothing;
    // a message may have been published between the two checks
    return can_read() ? Look::kMessage : Look::kEnd;
  }
  // Takes the next message. The writer does not overwrite its slot before release() of a higher number.
  uint64_t take() {
    memory_.taken(reader_).store(next_ + 1, std::memory_order_relaxed);
    return next_++;
  }
  // Releases all messages with numbers below `until`.
  void release(uint64_t until) { give_back(until); }
  // Leaves the ring. This must be the reader's last call.
  void leave() { give_back(kLeft); }

  // Sleeps until a message or the end may have come, or `interrupt` may have become nonzero.
  template <typename Word>
  SleepEnd sleep(const Word& interrupt, int64_t deadline_ns) {
    const uint64_t bit = uint64_t{1} << (reader_ % kReadersPerWord);
    auto& sleepers = memory_.sleepers(reader_ / kReadersPerWord);
    sleepers.fetch_or(bit, std::memory_order_relaxed);
    const uint32_t heard = memory_.bell().load(std::memory_order_acquire);
    memory_.fence();
    SleepEnd end = SleepEnd::kLookAgain;
    if (look() == Look::kNothing && interrupt.load(std::memory_order_acquire) == 0) {
      end = memory_.sleep(memory_.bell(), heard, deadline_ns);
    }
    sleepers.fetch_and(~bit, std::memory_order_relaxed);
    return end;
  }

  // Wakes all readers of the ring. Call it after setting the interrupt word of any reader. Any thread may
  // call it.
  static void interrupt(Memory& memory) {
    memory.bell().fetch_add(1, std::memory_order_release);
    memory.wake(memory.bell());
  }

 private:
  bool can_read() { return memory_.published(slot()).load(std::memory_order_acquire) == next_ + 1; }

  void give_back(uint64_t until) {
    memory_.released(reader_).store(until, std::memory_order_release);
    memory_.fence();
    if (memory_.writer_sleeps().load(std::memory_order_relaxed) == 0) return;
    memory_.writer_bell().fetch_add(1, std::memory_order_release);
    memory_.wake(memory_.writer_bell());
  }

  Memory memory_;
  uint32_t reader_;
  uint64_t next_ = 0;
};

}  // namespace verbena::message_queue
