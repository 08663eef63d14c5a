#include "device/proxy/queue_drain.h"

#include "base/text.h"

namespace verbena::symm {

namespace {

constexpr uint32_t kBatch = 64;  // of one round, so that queues take turns
constexpr uint64_t kMaxUnderWay = 4096;
constexpr uint64_t kWordBytes = 8;
constexpr uint64_t kSignalCookie = 1;

unsigned long long wide(uint64_t value) {
  return value;
}

bool is_word(const Window* window, uint64_t offset) {
  return window != nullptr && offset % kWordBytes == 0;
}

}  // namespace

QueueDrain::QueueDrain(PutQueue& queues, uint32_t index, Endpoint& endpoint, const WindowTable& windows,
                       uint32_t count_ranks)
    : queues_(queues),
      endpoint_(endpoint),
      windows_(windows),
      index_(index),
      count_ranks_(count_ranks),
      under_way_(kMaxUnderWay),
      done_(count_ranks),
      answers_(count_ranks) {}

bool QueueDrain::fetch() {
  PutDescriptor descriptor;
  if (!queues_.read(index_, position_, &descriptor)) return false;
  const uint64_t action = descriptor.action & kPutMaxOffset;
  request_ = {static_cast<PutOperation>(action >> kPutOperationShift), static_cast<uint32_t>(action),
              descriptor.operand, descriptor.extent, descriptor.place & kPutMaxOffset};
  // What does not fit the operation's eight bits is no operation.
  if (action >> kPutOperationShift > UINT8_MAX) request_.operation = PutOperation{};
  has_request_ = true;
  return true;
}

uint32_t QueueDrain::drain() {
  uint32_t count = 0;
  while (count < kBatch && position_ - completed_ < kMaxUnderWay && (has_request_ || fetch())) {
    if (post() != Posting::kTaken) break;
    enter_under_way();
    has_request_ = false;
    ++position_;
    ++count;
  }
  return count;
}

uint32_t QueueDrain::drop() {
  uint32_t count = 0;
  for (; count < kBatch && (has_request_ || fetch()); ++count) {
    has_request_ = false;
    ++position_;
  }
  return count;
}

// kTaken: all of the descriptor has been handed on.
Posting QueueDrain::post() {
  const Request& request = request_;
  const bool is_copy = request.operation == PutOperation::kPut || request.operation == PutOperation::kGet;
  if (request.operation < PutOperation::kPut || request.operation > PutOperation::kAwaitQueue)
    return refuse("there is no such operation");
  if (request.peer >= count_ranks_) return refuse("there is no such rank");
  if (request.operation == PutOperation::kAwaitQueue) return await_queue();
  const Window* there = windows_.find(request.place, is_copy ? request.extent : kWordBytes);
  if (there == nullptr) return refuse("the place at the peer is in no window");
  if (is_copy) return post_copy(*there);
  if (!is_word(there, request.place)) return refuse("the word at the peer is at no multiple of 8");
  return request.operation == PutOperation::kSetSignal ? post_signal(*there) : post_word(*there);
}

Posting QueueDrain::post_copy(const Window& there) {
  const Request& request = request_;
  const Window* here = windows_.find(request.operand, request.extent);
  if (here == nullptr) return refuse("the place here is in no window");
  if (request.extent == 0) return Posting::kTaken;
  const Transfer transfer{.peer = request.peer,
                          .lane = index_,
                          .local_region = here->region,
                          .remote_region = there.region,
                          .local_offset = request.operand - here->heap_offset,
                          .remote_offset = request.place - there.heap_offset,
                          .bytes = request.extent};
  // A put waits for no add before it: what it is ordered with are the signals behind it.
  if (request.operation == PutOperation::kPut) return check(endpoint_.put(transfer, 0));
  order_behind_answers();
  const Posting posting = check(endpoint_.get(transfer, 0));
  if (posting == Posting::kTaken) note_answer();
  return posting;
}

Posting QueueDrain::post_word(const Window& there) {
  const Request& request = request_;
  if (request.extent != 0) return refuse("a word has no length");
  const RemoteWord word{request.peer, index_, there.region, request.place - there.heap_offset};
  order_behind_answers();
  if (request.operation == PutOperation::kWriteWord)
    return check(endpoint_.write_word(word, request.operand, 0));
  const Posting posting = check(endpoint_.add_word(word, request.operand, 0));
  if (posting == Posting::kTaken) note_answer();
  return posting;
}

// Queues cannot wait for each other for ever: whoever asks reads the other queue's position first, so that of
// two such descriptors the later one is behind the position that the earlier one waits for.
Posting QueueDrain::await_queue() {
  if (request_.extent >= queues_.count() || request_.extent == index_)
    return refuse("there is no such other queue");
  const uint64_t completed = queues_.completed(static_cast<uint32_t>(request_.extent));
  return completed >= request_.operand ? Posting::kTaken : Posting::kFull;
}

// The word of NICs becomes what the word of the ranks in reach lacks. Whatever is asked for behind it waits.
// When the word has been read, all before it on the lane is complete: nothing more to wait for.
Posting QueueDrain::post_signal(const Window& there) {
  const Request& request = request_;
  const Window* other = windows_.find(request.extent, kWordBytes);
  if (!is_word(other, request.extent)) return refuse("the signal's other word is in no window");
  if (signal_step_ == SignalStep::kRead) {
    const RemoteWord word{request.peer, index_, other->region, request.extent - other->heap_offset};
    if (check(endpoint_.read_word(word, kSignalCookie)) == Posting::kTaken) signal_step_ = SignalStep::kAwait;
  }
  if (signal_step_ != SignalStep::kWrite) return Posting::kFull;
  const RemoteWord word{request.peer, index_, there.region, request.place - there.heap_offset};
  const Posting posting = check(endpoint_.write_word(word, request.operand - signal_value_, 0));
  if (posting == Posting::kTaken) signal_step_ = SignalStep::kRead;
  return posting;
}

void QueueDrain::note_value(uint64_t value) {
  if (signal_step_ != SignalStep::kAwait) return;
  signal_value_ = value;
  signal_step_ = SignalStep::kWrite;
}

// Adds to one word may pass each other: who waits for the last of them waits for all.
void QueueDrain::order_behind_answers() {
  Answers& answers = answers_[request_.peer];
  if (answers.count_taken <= done_[request_.peer]) return;
  const bool commutes =
      request_.operation == PutOperation::kAddWord && answers.is_one_place && answers.place == request_.place;
  if (commutes) return;
  endpoint_.fence(request_.peer, index_);
  answers = {};
}

// Those before it, if any are left, are adds to the same place: others were fenced off.
void QueueDrain::note_answer() {
  answers_[request_.peer] = {endpoint_.count_taken(request_.peer, index_), request_.place,
                             request_.operation == PutOperation::kAddWord};
}

// A descriptor that posted nothing is complete with the peer's operations before it.
void QueueDrain::enter_under_way() {
  under_way_[position_ % kMaxUnderWay] = {endpoint_.count_taken(request_.peer, index_), request_.peer};
}

Posting QueueDrain::refuse(const std::string& cause) {
  failure_.reason = SymmAbort::kRefused;
  base::append(failure_.text,
               "put queue %u, descriptor %llu (operation %u, rank %u, operand 0x%llx, extent 0x%llx, "
               "place 0x%llx): %s",
               index_, wide(position_), static_cast<unsigned>(request_.operation), request_.peer,
               wide(request_.operand), wide(request_.extent), wide(request_.place), cause.c_str());
  return Posting::kRefused;
}

Posting QueueDrain::check(Posting posting) {
  if (posting != Posting::kRefused) return posting;
  const std::string& error = endpoint_.error(request_.peer);
  if (error.empty()) return refuse(endpoint_.refusal());
  failure_ = {SymmAbort::kNetworkFailed, error};
  return posting;
}

// A position whose producer is not done yet may stand before others that are.
void QueueDrain::mark() {
  mark_ = position_;
  PutDescriptor descriptor;
  for (uint64_t ahead = 0; ahead < queues_.depth(); ++ahead) {
    if (queues_.read(index_, position_ + ahead, &descriptor)) mark_ = position_ + ahead + 1;
  }
}

void QueueDrain::publish_consumed() {
  if (consumed_ == position_) return;
  consumed_ = position_;
  queues_.publish_consumed(index_, consumed_);
}

void QueueDrain::publish_completed() {
  const uint64_t before = completed_;
  for (; completed_ != position_; ++completed_) {
    const UnderWay& oldest = under_way_[completed_ % kMaxUnderWay];
    if (done_[oldest.peer] < oldest.count_taken) break;
  }
  if (completed_ != before) queues_.publish_completed(index_, completed_);
}

std::optional<uint32_t> QueueDrain::awaited_peer() const {
  if (completed_ != position_) return under_way_[completed_ % kMaxUnderWay].peer;
  if (signal_step_ == SignalStep::kAwait) return request_.peer;
  return std::nullopt;
}

}  // namespace verbena::symm
