// One put queue on its way to the endpoint: which descriptor is next, what is under way, and what waits for
// what. Descriptors are taken in the order of the queue; those of one peer are posted in that order, and no
// peer waits for another: what cannot be posted yet waits in a list of its peer's. The driver's thread alone.
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
  // Of all queues, by their indices.
  using All = std::vector<std::unique_ptr<QueueDrain>>;

  // Queue `index`, over the lane of the same number. All outlive it.
  QueueDrain(PutQueue& queues, uint32_t index, Endpoint& endpoint, const WindowTable& windows,
             uint32_t count_ranks, const All& all);

  // Posts what waits and what there is and room for, up to a batch: how many descriptors. The window table is
  // taken up. A failure is the end: only drop() may follow.
  uint32_t drain();
  const DrainFailure& failure() const { return failure_; }
  // Takes descriptors and does nothing: how many.
  uint32_t drop();

  void note_done(uint32_t peer, uint64_t count_done) { peers_[peer].count_done = count_done; }
  // What the word was that the operation with this cookie read or updated.
  void note_value(uint64_t cookie, uint64_t value);

  // Tells kernels how far it is.
  void publish_consumed();
  void publish_completed();

  // What the queue has now becomes what is_quiet() asks for; and whether all of it has become complete since.
  void mark();
  bool is_quiet() const { return completed_ >= mark_; }

  // Descriptors that are complete with all before them, as last published.
  uint64_t count_completed() const { return completed_; }
  // Whose answer the oldest one needs to be complete; none where nothing is under way.
  std::optional<uint32_t> awaited_peer() const;

 private:
  struct Request {
    PutOperation operation;
    bool tells;
    uint32_t peer;
    uint64_t operand, extent, place;
    uint64_t rows, row_bytes_here, row_bytes_there;  // of a copy; bytes from one row to the next
  };
  enum class Step : uint8_t { kWaiting, kAnswering, kAnswered, kPosted };
  struct UnderWay {
    Request request;
    Step step = Step::kWaiting;
    uint32_t next = kNone;     // of its peer's list, by position modulo kMaxUnderWay
    uint64_t count_taken = 0;  // of the lane, behind it, once it is posted
    // Of a copy the rows that are posted; of an update or a signal the value that came back; of kAwaitQueue
    // what the other queue's lane has to come to.
    uint64_t progress = 0;
  };
  // Of what is under way for one peer, in order; each is in one list at most.
  struct List {
    uint32_t first = kNone, last = kNone;
  };
  // Adds and gets to one peer that a later operation may have to wait for.
  struct Answers {
    uint64_t count_taken = 0;  // of the lane, behind the last one
    uint64_t place = 0;        // of all of them
    bool is_one_place = false;
  };
  struct Peer {
    uint64_t count_done = 0;  // the endpoint's
    Answers answers;
    List waiting;  // not posted yet
    List untold;   // posted, and to be told of
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

  uint64_t position_ = 0;                  // of the next descriptor
  std::optional<Request> rows_;            // what a kRows said of the next one
  std::vector<UnderWay> under_way_;        // ring, by position
  std::vector<Peer> peers_;                // by rank
  std::vector<uint32_t> blocked_;          // peers with something waiting
  std::vector<uint32_t> untold_;           // peers with something to be told of
  std::deque<uint64_t> kept_;              // positions whose slots readers of replies keep
  uint64_t consumed_ = 0, completed_ = 0;  // as published
  uint64_t mark_ = 0;                      // behind the last descriptor that mark() saw
  uint64_t posting_ = 0;                   // the position that is being posted, for errors
  DrainFailure failure_;
};

}  // namespace verbena::symm
