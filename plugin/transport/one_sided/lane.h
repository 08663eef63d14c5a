// One queue pair to one peer: what was taken and not posted yet, and which completion ends which operation.
//
// An operation is one request or, if it is long, several; it ends with its last one. Requests are signaled
// where somebody asked, where the device needs it (every so many) and at the end of each chain, so that
// whatever was posted is told of. Words have a registered place each, by the position of their request in the
// queue: it is used again when the slot is.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "verbs/queues.h"

namespace verbena::transport {

// Memory that a get went to, as this rank's own NIC reaches it.
struct PushedPlace {
  const void* address = nullptr;
  uint32_t key = 0;
};

class Lane {
 public:
  struct Options {
    uint64_t index;  // of the lane in its endpoint: the cookie of all its requests
    uint32_t send_depth;
    uint32_t outstanding_reads;
    bool has_atomics;
    const verbs::LocalAddress* local;
  };
  static base::Result<Lane> create(verbs::Device& device, verbs::CompletionQueue& completions,
                                   const Options& options);
  Lane() = default;

  verbs::QueuePair& pair() { return pair_; }
  const verbs::QueuePair& pair() const { return pair_; }

  // How many more requests may be appended.
  uint32_t room() const { return pair_.free_slots() - static_cast<uint32_t>(pending_.size()); }
  bool has_pending() const { return !pending_.empty(); }
  uint64_t count_taken() const { return count_taken_; }
  uint64_t count_done() const { return count_done_; }

  // The registered word of the next request.
  uint64_t* next_word() { return &words_[appended_ & word_mask_]; }
  uint32_t words_key() const { return words_region_.local_key(); }
  // Into the room there is. A full chain goes out at once.
  base::Outcome append(verbs::OneSidedRequest request);
  // The operation ends with this request; `unpushed`: it is a get to this place (get_push.h).
  base::Outcome append_last(verbs::OneSidedRequest request, uint64_t cookie, bool brings_word,
                            const std::optional<PushedPlace>& unpushed = {});
  // What is appended next waits for the adds and reads before it.
  void fence() { is_fenced_ |= has_answers_; }
  base::Outcome ring();

  struct Ended {
    uint64_t count_done, cookie, value;
    std::optional<PushedPlace> unpushed;  // of the gets since the last signaled request, if there were any
  };
  // For each successful completion, in order. Empty for one that nobody asked for.
  std::optional<Ended> retire();

 private:
  struct Mark {  // a signaled request
    uint64_t count_done;
    uint64_t cookie;
    uint32_t word;
    bool brings_word;
    std::optional<PushedPlace> unpushed = {};
  };
  void signal(Mark mark);
  base::Outcome push(verbs::OneSidedRequest request);

  std::unique_ptr<uint64_t[]> words_;  // before their registration, and that before the pair
  verbs::MemoryRegion words_region_;
  verbs::QueuePair pair_;
  std::vector<verbs::OneSidedRequest> pending_;  // capacity kChainEntries
  std::vector<Mark> marks_;                      // ring, by signaled request
  uint32_t mark_mask_ = 0, mark_head_ = 0, mark_tail_ = 0;
  uint32_t word_mask_ = 0;
  uint32_t appended_ = 0;  // requests, wrapping
  uint32_t unsignaled_ = 0, signal_interval_ = 0;
  uint64_t index_ = 0;
  uint64_t count_taken_ = 0, count_done_ = 0;
  bool has_answers_ = false;  // an add or a read since the last fence
  bool is_fenced_ = false;
  std::optional<PushedPlace> unpushed_;
};

}  // namespace verbena::transport
