// Adds to words in GPU memory, which the CPU cannot access. This rank's own device READs and then WRITEs the
// words, over a queue pair that is connected to itself, on the rail where the rank's words are accessed. An
// add therefore takes the same path as the earlier puts. Only the rank's agent adds, one batch of words at a
// time; a change that a GPU makes to such a word at the same time may be lost. Both requests may be repeated,
// because they carry values. After a failure the queue pair is created again and the batch continues, without
// the words whose memory the device rejects. Only the driver calls it.
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
  // While a batch is collected: returns the number of this word in the batch, or kMaxWords if the batch is
  // full.
  uint32_t find_word(const LocalRegion& region, uint64_t offset);
  void add(uint32_t word, uint64_t operand) { words_[word].sum += operand; }
  // Starts the collected batch, if it has words. Continues the batch after a failure, also if the device does
  // not report the failure, and after the rank's words have moved to another rail.
  void advance(uint32_t rail);
  // Once the batch is done: the value of the word before the next add to it, in the order of the calls of
  // add(). clear() begins another batch.
  bool is_done() const { return phase_ == Phase::kDone; }
  uint64_t take_value(uint32_t word, uint64_t operand) {
    return std::exchange(words_[word].before, words_[word].before + operand);
  }
  // Returns why the word could not be changed, or null.
  const char* find_refusal(uint32_t word) const { return words_[word].refusal; }
  void clear() {
    words_.clear();
    phase_ = Phase::kCollecting;
  }
  // Takes a completion of that rail's queue pair.
  void take_completion(uint32_t rail, const verbs::Completion& completion);
  // Returns why no adds are possible any more, or an empty string.
  const std::string& failure() const { return failure_; }

 private:
  enum class Phase : uint8_t { kCollecting, kReading, kWriting, kDone };
  struct Word {
    uint64_t address;
    // By rail; copied, because the region may be removed meanwhile.
    std::array<uint32_t, protocol::kMaxRails> keys;
    uint64_t sum, before;
    const char* refusal;
  };
  struct Rail {
    verbs::Device* device;
    verbs::CompletionQueue* completions;
    verbs::MemoryRegion region;  // registration of values_
    verbs::QueuePair pair;
  };
  bool connect(Rail& rail) const;
  void post();
  void look_for_silence(uint32_t rail);
  void fail(const char* what);

  std::unique_ptr<std::array<uint64_t, kMaxWords>> values_;  // declared before the members that refer to it
  std::vector<Rail> rails_;
  std::vector<Word> words_;
  Phase phase_ = Phase::kCollecting;
  bool is_under_way_ = false;
  uint32_t rail_ = 0;                              // of the batch
  int64_t posted_at_ns_ = 0, down_since_ns_ = 0;   // 0 if its port is up
  int64_t failed_since_ns_ = 0, retry_at_ns_ = 0;  // 0 if it works
  std::string failure_;
};

}  // namespace verbena::transport
