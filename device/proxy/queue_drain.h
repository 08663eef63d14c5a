// One put queue on its way to the endpoint: which descriptor is next, what is under way, and what the next
// one has to wait for. The driver's thread alone.
#pragma once

#include <cstdint>
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
  // Queue `index`, over the lane of the same number. All outlive it.
  QueueDrain(PutQueue& queues, uint32_t index, Endpoint& endpoint, const WindowTable& windows,
             uint32_t count_ranks);

  // Posts what there is and room for, up to a batch: how many descriptors. The window table is taken up. A
  // failure is the end: only drop() may follow.
  uint32_t drain();
  const DrainFailure& failure() const { return failure_; }
  // Takes descriptors and does nothing: how many.
  uint32_t drop();

  void note_done(uint32_t peer, uint64_t count_done) { done_[peer] = count_done; }
  // What the word read for a signal is.
  void note_value(uint64_t value);

  // Tells kernels how far it is.
  void publish_consumed();
  void publish_completed();

  // What the queue has now becomes what is_quiet() asks for; and whether all of it has become complete since.
  void mark();
  bool is_quiet() const { return completed_ >= mark_; }

  // Descriptors that are complete, as last published.
  uint64_t count_completed() const { return completed_; }
  // Whose answer the next one needs to be complete; none where nothing is under way.
  std::optional<uint32_t> awaited_peer() const;

 private:
  struct Request {
    PutOperation operation;
    uint32_t peer;
    uint64_t operand, extent, place;
  };
  struct UnderWay {
    uint64_t count_taken;  // of the lane, behind it
    uint32_t peer;
  };
  // Adds and gets to one peer that a later operation may have to wait for.
  struct Answers {
    uint64_t count_taken = 0;  // of the lane, behind the last one
    uint64_t place = 0;        // of all of them
    bool is_one_place = false;
  };
  enum class SignalStep : uint8_t { kRead, kAwait, kWrite };

  bool fetch();
  Posting post();
  Posting post_copy(const Window& there);
  Posting post_signal(const Window& there);
  Posting post_word(const Window& there);
  Posting await_queue();
  void order_behind_answers();
  void note_answer();
  void enter_under_way();
  Posting refuse(const std::string& cause);
  Posting check(Posting posting);

  PutQueue& queues_;
  Endpoint& endpoint_;
  const WindowTable& windows_;
  const uint32_t index_, count_ranks_;

  uint64_t position_ = 0;  // of the next descriptor
  bool has_request_ = false;
  Request request_{};  // the next descriptor's, once it has been read
  SignalStep signal_step_ = SignalStep::kRead;
  uint64_t signal_value_ = 0;

  std::vector<UnderWay> under_way_;        // ring, by position
  uint64_t consumed_ = 0, completed_ = 0;  // as published
  uint64_t mark_ = 0;                      // behind the last descriptor that mark() saw
  std::vector<uint64_t> done_;             // by peer: the endpoint's count_done
  std::vector<Answers> answers_;           // by peer
  DrainFailure failure_;
};

}  // namespace verbena::symm
