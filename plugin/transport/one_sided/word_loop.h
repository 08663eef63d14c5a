// Adds to words that the CPU does not reach, in memory of GPUs: READs and then WRITEs of the words, which
// this rank's own device carries out over a queue pair to itself, on the rail where the rank's words are
// reached. So an add takes the path of the puts before it. Only the rank's agent adds, one batch of words at
// a time; what a GPU does to such a word meanwhile may be lost. Both requests may be repeated, as they carry
// values: after a failure the queue pair is made anew and the batch goes on, without the words whose memory
// the device refuses. The driver's.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/one_sided/region_table.h"
#include "verbs/queues.h"

namespace verbena::transport {

class WordLoop {
 public:
  static constexpr uint32_t kMaxWords = 16;  // of a batch

  static base::Result<std::unique_ptr<WordLoop>> create(std::span<verbs::Device* const> devices,
                                                        std::span<verbs::CompletionQueue> completions);
  ~WordLoop();

  bool is_collecting() const { return phase_ == Phase::kCollecting; }
  // While a batch is collected: the number of this word in it; kMaxWords if there is no place.
  uint32_t find_word(const LocalRegion& region, uint64_t offset);
  void add(uint32_t word, uint64_t operand) { words_[word].sum += operand; }
  // Begins what was collected, if anything was. Goes on after a failure, also one that the device does not
  // report, and when the rank's words have moved to another rail.
  void advance(uint32_t rail);
  // The batch is done: the word before the next add to it, in the order of add(); clear() begins another
  // batch.
  bool is_done() const { return phase_ == Phase::kDone; }
  uint64_t take_value(uint32_t word, uint64_t operand) {
    return std::exchange(words_[word].before, words_[word].before + operand);
  }
  // Why the word could not be added to; null: it was.
  const char* find_refusal(uint32_t word) const { return words_[word].refusal; }
  void clear() {
    words_.clear();
    phase_ = Phase::kCollecting;
  }
  // A completion of that rail's queue pair.
  void take_completion(uint32_t rail, const verbs::Completion& completion);
  // Why words cannot be added to any more; empty: they can.
  const std::string& failure() const { return failure_; }

 private:
  enum class Phase : uint8_t { kCollecting, kReading, kWriting, kDone };
  struct Word {
    uint64_t address;
    std::array<uint32_t, protocol::kMaxRails> keys;  // by rail; regions may go meanwhile
    uint64_t sum, before;
    const char* refusal;
  };
  struct Rail {
    verbs::Device* device;
    verbs::CompletionQueue* completions;
    verbs::MemoryRegion region;  // of values_
    verbs::QueuePair pair;
  };
  bool connect(Rail& rail) const;
  void post();
  void look_for_silence(uint32_t rail);
  void fail(const char* what);

  std::unique_ptr<std::array<uint64_t, kMaxWords>> values_;  // before what refers to it
  std::vector<Rail> rails_;
  std::vector<Word> words_;
  Phase phase_ = Phase::kCollecting;
  bool is_under_way_ = false;
  uint32_t rail_ = 0;                              // of the batch
  int64_t posted_at_ns_ = 0, down_since_ns_ = 0;   // 0: its port is up
  int64_t failed_since_ns_ = 0, retry_at_ns_ = 0;  // 0: it works
  std::string failure_;
};

}  // namespace verbena::transport
