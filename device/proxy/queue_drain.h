// Moves one put queue's descriptors to the endpoint, and tracks which descriptors are outstanding and which
// wait for other descriptors. It takes descriptors in queue order, and posts the descriptors for each peer in
// this order. Peers do not block each other: a descriptor that cannot be posted yet waits in its peer's list.
// Only the driving thread uses this class.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "device/proxy/window_table.h"
#include "device/put_queue/put_queue.h"
#include "verbena/endpoint.h"
#include "verbena/symm_abi.h"

namespace verbena::symm {

struct DrainFailure {
  SymmAbort reason = SymmAbort::kNone;
  std::string text;
};

class QueueDrain {
 public:
  // The drains of all queues, by index.
  using All = std::vector<std::unique_ptr<QueueDrain>>;

  // Serves queue `index` over the lane of the same number. All arguments must outlive it.
  QueueDrain(PutQueue& queues, uint32_t index, Endpoint& endpoint, const WindowTable& windows,
             uint32_t count_ranks, const All& all);

  // Posts waiting and new descriptors, up to a batch, and returns their number. The caller must have called
  // take_up() of the window table. After a failure only drop() may follow.
  uint32_t drain();
  const DrainFailure& failure() const { return failure_; }
  // Consumes descriptors without posting them, and returns their number.
  uint32_t drop();

  void note_done(uint32_t peer, uint64_t count_done) { peers_[peer].count_done = count_done; }
  // Records the previous value of the word that the operation with this cookie read or updated.
  void note_value(uint64_t cookie, uint64_t value);

  // Publish progress to the kernels.
  void publish_consumed();
  void publish_completed();

  // mark() records the queue's current end. is_quiet() returns whether everything before that mark is
  // complete.
  void mark();
  bool is_quiet() const { return completed_ >= mark_; }

  // Returns the number of descriptors that are complete together with all earlier descriptors, as last
  // published.
  uint64_t count_completed() const { return completed_; }
  // Returns the peer for whose answer the oldest outstanding descriptor waits, or nothing if no descriptor is
  // outstanding.
  std::optional<uint32_t> awaited_peer() const;

 private:
  struct Request {
    PutOperation operation;
    bool tells;
    uint32_t peer;
    uint64_t operand, extent, place;
    uint64_t rows, row_bytes_here, row_bytes_there;  // of a copy; row strides in bytes
  };
  enum class Step : uint8_t { kWaiting, kAnswering, kAnswered, kPosted };
  struct UnderWay {
    Request request;
    Step step = Step::kWaiting;
    uint32_t next = kNone;     // next in its peer's list; positions modulo kMaxUnderWay
    uint64_t count_taken = 0;  // the lane's count after this operation was posted
    // For a copy, the number of rows posted. For an update or a signal, the returned value. For kAwaitQueue,
    // the count that the other queue's lane must reach.
    uint64_t progress = 0;
  };
  // A list of outstanding descriptors for one peer, in order. Each descriptor is in at most one list.
  struct List {
    uint32_t first = kNone, last = kNone;
  };
  // Atomic adds and gets of one peer, for which a later operation may have to wait.
  struct Answers {
    uint64_t count_taken = 0;  // the lane's count after the last operation
    uint64_t place = 0;        // the common address, if is_one_place
    bool is_one_place = false;
  };
  struct Peer {
    uint64_t count_done = 0;  // the endpoint's count
    Answers answers;
    List waiting;  // not posted yet
    List untold;   // posted; the kernel wants a reply
  };
  static constexpr uint32_t kNone = UINT32_MAX;

  UnderWay& at(uint64_t position);
  const UnderWay& at(uint64_t position) const;
  uint64_t position_of(uint32_t index) const;
  bool is_complete(const UnderWay& one) const;
  void append(List& list, uint32_t index);
  uint32_t take_first(List& list);

  bool fetch();
  void take_rows(Request& request);
  uint32_t post_waiting();
  bool post_waiting_of(Peer& peer, uint32_t* count);
  void finish(uint64_t position);
  Posting post(uint64_t position);
  Posting post_copy(UnderWay& one);
  Posting post_signal(UnderWay& one, const Window& there);
  Posting post_update(UnderWay& one, const RemoteWord& word);
  Posting post_word(UnderWay& one, const Window& there);
  Posting await_queue(UnderWay& one);
  bool seize_behind(uint32_t peer, uint64_t position, uint64_t* count_taken) const;
  void order_behind_answers(const Request& request);
  void note_answer(const Request& request);
  void tell_complete();
  Posting refuse(uint64_t position, const std::string& cause);
  Posting check(uint64_t position, Posting posting);

  PutQueue& queues_;
  Endpoint& endpoint_;
  const WindowTable& windows_;
  const uint32_t index_, count_ranks_;
  const All& all_;

  uint64_t position_ = 0;                  // position of the next descriptor
  std::optional<Request> rows_;            // contents of a kRows descriptor, which describes the next one
  std::vector<UnderWay> under_way_;        // ring, by position
  std::vector<Peer> peers_;                // by rank
  std::vector<uint32_t> blocked_;          // peers with waiting descriptors
  std::vector<uint32_t> untold_;           // peers with replies to send
  std::deque<uint64_t> kept_;              // positions whose reply slots are still being read
  uint64_t consumed_ = 0, completed_ = 0;  // as published
  uint64_t mark_ = 0;                      // the queue's end at the last mark()
  uint64_t posting_ = 0;                   // the position being posted, for errors
  DrainFailure failure_;
};

}  // namespace verbena::symm
