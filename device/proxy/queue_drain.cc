#include "device/proxy/queue_drain.h"

#include <algorithm>

#include "base/text.h"

namespace verbena::symm {

namespace {

constexpr uint32_t kBatch = 64;  // descriptors per round, so that all queues make progress
constexpr uint64_t kMaxUnderWay = 4096;
constexpr uint64_t kWordBytes = 8;

unsigned long long wide(uint64_t value) {
  return value;
}

bool is_word(const Window* window, uint64_t offset) {
  return window != nullptr && offset % kWordBytes == 0;
}

bool is_copy(PutOperation operation) {
  return operation == PutOperation::kPut || operation == PutOperation::kGet;
}
bool has_value(PutOperation operation) {
  return operation == PutOperation::kFetchAdd || operation == PutOperation::kCompareSwap;
}
bool adds(PutOperation operation) {
  return operation == PutOperation::kAddWord || operation == PutOperation::kFetchAdd;
}

// Returns the bytes from the first row's begin to the last row's end. If that overflows 64 bits, returns more
// than any window's length.
uint64_t measure_rows(uint64_t rows, uint64_t row_bytes, uint64_t stride_bytes) {
  uint64_t length_bytes = 0;
  const bool is_too_long = __builtin_mul_overflow(rows - 1, stride_bytes, &length_bytes) ||
                           __builtin_add_overflow(length_bytes, row_bytes, &length_bytes);
  return is_too_long ? UINT64_MAX : length_bytes;
}

}  // namespace

QueueDrain::QueueDrain(PutQueue& queues, uint32_t index, Endpoint& endpoint, const WindowTable& windows,
                       uint32_t count_ranks, const All& all)
    : queues_(queues),
      endpoint_(endpoint),
      windows_(windows),
      index_(index),
      count_ranks_(count_ranks),
      all_(all),
      under_way_(kMaxUnderWay),
      peers_(count_ranks) {}

QueueDrain::UnderWay& QueueDrain::at(uint64_t position) {
  return under_way_[position % kMaxUnderWay];
}
const QueueDrain::UnderWay& QueueDrain::at(uint64_t position) const {
  return under_way_[position % kMaxUnderWay];
}

// Finds the position of an outstanding descriptor from its index, which is unique among kMaxUnderWay
// positions.
uint64_t QueueDrain::position_of(uint32_t index) const {
  return completed_ + (index - completed_) % kMaxUnderWay;
}

// A descriptor that posted nothing completes together with the peer's earlier operations.
bool QueueDrain::is_complete(const UnderWay& one) const {
  return one.step == Step::kPosted && peers_[one.request.peer].count_done >= one.count_taken;
}

void QueueDrain::append(List& list, uint32_t index) {
  under_way_[index].next = kNone;
  (list.first == kNone ? list.first : under_way_[list.last].next) = index;
  list.last = index;
}

uint32_t QueueDrain::take_first(List& list) {
  const uint32_t index = list.first;
  list.first = under_way_[index].next;
  return index;
}

// Returns false if the next descriptor is not written yet.
bool QueueDrain::fetch() {
  PutDescriptor descriptor;
  if (!queues_.read(index_, position_, &descriptor)) return false;
  const uint64_t action = descriptor.action & kPutMaxOffset;
  UnderWay& next = at(position_);
  next = {};
  next.request = {.operation = static_cast<PutOperation>(action >> kPutOperationShift),
                  .tells = (action & kPutReports) != 0,
                  .peer = static_cast<uint32_t>(action),
                  .operand = descriptor.operand,
                  .extent = descriptor.extent,
                  .place = descriptor.place & kPutMaxOffset,
                  .rows = 1,
                  .row_bytes_here = 0,
                  .row_bytes_there = 0};
  // Other flags are undefined.
  if ((action & ~kPutReports) >> kPutOperationShift > UINT8_MAX) next.request.operation = PutOperation{};
  take_rows(next.request);
  return true;
}

// Applies the rows that the previous descriptor has announced to this request. Sets no rows if the previous
// descriptor has announced rows for a different kind of descriptor.
void QueueDrain::take_rows(Request& request) {
  if (rows_) {
    const bool is_theirs = is_copy(request.operation) && rows_->peer == request.peer;
    request.rows = is_theirs ? rows_->place : 0;
    request.row_bytes_here = rows_->operand;
    request.row_bytes_there = rows_->extent;
    rows_.reset();
  }
  if (request.operation == PutOperation::kRows) rows_ = request;
}

// Descriptors of one peer are posted one after the other.
uint32_t QueueDrain::drain() {
  uint32_t count = post_waiting();
  while (failure_.reason == SymmAbort::kNone && count < kBatch && position_ - completed_ < kMaxUnderWay &&
         fetch()) {
    const Request& request = at(position_).request;
    if (has_value(request.operation)) kept_.push_back(position_);
    const auto index = static_cast<uint32_t>(position_ % kMaxUnderWay);
    Peer* const peer = request.peer < count_ranks_ ? &peers_[request.peer] : nullptr;
    const bool has_others = peer != nullptr && peer->waiting.first != kNone;
    const Posting posting = has_others ? Posting::kFull : post(position_);
    if (posting == Posting::kRefused) break;
    if (posting == Posting::kTaken) {
      finish(position_);
    } else {
      if (!has_others) blocked_.push_back(request.peer);
      append(peer->waiting, index);
    }
    ++position_;
    ++count;
  }
  return count;
}

uint32_t QueueDrain::post_waiting() {
  uint32_t count = 0;
  std::erase_if(blocked_, [&](uint32_t peer) { return post_waiting_of(peers_[peer], &count); });
  return count;
}

// Returns whether the peer's list is empty.
bool QueueDrain::post_waiting_of(Peer& peer, uint32_t* count) {
  while (peer.waiting.first != kNone && failure_.reason == SymmAbort::kNone) {
    const uint64_t position = position_of(peer.waiting.first);
    if (post(position) != Posting::kTaken) return false;
    take_first(peer.waiting);
    finish(position);
    ++*count;
  }
  return peer.waiting.first == kNone;
}

// The descriptor is completely posted.
void QueueDrain::finish(uint64_t position) {
  UnderWay& one = at(position);
  one.step = Step::kPosted;
  one.count_taken = endpoint_.count_taken(one.request.peer, index_);
  if (!one.request.tells && !has_value(one.request.operation)) return;
  Peer& peer = peers_[one.request.peer];
  if (peer.untold.first == kNone) untold_.push_back(one.request.peer);
  append(peer.untold, static_cast<uint32_t>(position % kMaxUnderWay));
}

uint32_t QueueDrain::drop() {
  kept_.clear();
  uint32_t count = 0;
  for (PutDescriptor descriptor; count < kBatch && queues_.read(index_, position_, &descriptor); ++count)
    ++position_;
  return count;
}

// Returns kTaken if the descriptor was completely posted, or kFull to retry in a later round.
Posting QueueDrain::post(uint64_t position) {
  posting_ = position;
  UnderWay& one = at(position);
  const Request& request = one.request;
  if (request.operation < PutOperation::kPut || request.operation > PutOperation::kRows)
    return refuse(position, "the operation is unknown");
  if (request.peer >= count_ranks_) return refuse(position, "the rank does not exist");
  if (request.rows == 0 || (request.operation == PutOperation::kRows && request.place == 0))
    return refuse(position,
                  "the number of rows is 0, or the next descriptor is not a put or get to the same rank");
  if (request.operation == PutOperation::kAwaitQueue) return await_queue(one);
  if (request.operation == PutOperation::kRows) return Posting::kTaken;
  if (is_copy(request.operation)) return post_copy(one);
  const Window* there = windows_.find(request.place, kWordBytes);
  if (there == nullptr) return refuse(position, "the remote address is outside every window");
  if (!is_word(there, request.place)) return refuse(position, "the remote word is not aligned to 8 bytes");
  return request.operation == PutOperation::kSetSignal ? post_signal(one, *there) : post_word(one, *there);
}

Posting QueueDrain::post_copy(UnderWay& one) {
  const Request& request = one.request;
  const Window* there =
      windows_.find(request.place, measure_rows(request.rows, request.extent, request.row_bytes_there));
  if (there == nullptr) return refuse(posting_, "the remote address is outside every window");
  const Window* here =
      windows_.find(request.operand, measure_rows(request.rows, request.extent, request.row_bytes_here));
  if (here == nullptr) return refuse(posting_, "the local address is outside every window");
  if (request.extent == 0) return Posting::kTaken;
  const bool gets = request.operation == PutOperation::kGet;
  // A put does not wait for an earlier add, because puts are ordered only with the signals that follow them.
  if (gets && one.progress == 0) order_behind_answers(request);
  for (; one.progress < request.rows; ++one.progress) {
    const Transfer transfer{
        .peer = request.peer,
        .lane = index_,
        .local_region = here->region,
        .remote_region = there->region,
        .local_offset = request.operand + one.progress * request.row_bytes_here - here->heap_offset,
        .remote_offset = request.place + one.progress * request.row_bytes_there - there->heap_offset,
        .bytes = request.extent};
    const Posting posting = check(posting_, gets ? endpoint_.get(transfer, 0) : endpoint_.put(transfer, 0));
    if (posting != Posting::kTaken) return posting;
    if (gets) note_answer(request);
  }
  return Posting::kTaken;
}

Posting QueueDrain::post_word(UnderWay& one, const Window& there) {
  const Request& request = one.request;
  if (request.extent != 0 && request.operation != PutOperation::kCompareSwap)
    return refuse(posting_, "the length of an operation on a word must be 0");
  const RemoteWord word{request.peer, index_, there.region, request.place - there.heap_offset};
  if (has_value(request.operation)) return post_update(one, word);
  order_behind_answers(request);
  if (request.operation == PutOperation::kWriteWord)
    return check(posting_, endpoint_.write_word(word, request.operand, 0));
  const Posting posting = check(posting_, endpoint_.add_word(word, request.operand, 0));
  if (posting == Posting::kTaken) note_answer(request);
  return posting;
}

Posting QueueDrain::post_update(UnderWay& one, const RemoteWord& word) {
  const Request& request = one.request;
  if (request.operation == PutOperation::kCompareSwap && !endpoint_.swaps_words())
    return refuse(posting_, endpoint_.describe_rail() + " has no compare-and-swap");
  order_behind_answers(request);
  const uint64_t cookie = posting_ + 1;
  const Posting posting =
      check(posting_, request.operation == PutOperation::kFetchAdd
                          ? endpoint_.add_word(word, request.operand, cookie)
                          : endpoint_.compare_swap_word(word, request.extent, request.operand, cookie));
  if (posting == Posting::kTaken) note_answer(request);
  return posting;
}

// Two queues cannot deadlock. A kernel reads the other queue's position before it writes its own descriptor,
// so of two such descriptors, the later descriptor is after the position for which the earlier descriptor
// waits.
Posting QueueDrain::await_queue(UnderWay& one) {
  const Request& request = one.request;
  if (request.extent >= all_.size() || request.extent == index_)
    return refuse(
        posting_,
        "the put queue for which the operation waits does not exist or is the queue of the operation itself");
  const QueueDrain& other = *all_[request.extent];
  if (one.step == Step::kWaiting && other.seize_behind(request.peer, request.operand, &one.progress))
    one.step = Step::kAnswering;
  return one.step == Step::kAnswering && other.peers_[request.peer].count_done >= one.progress
             ? Posting::kTaken
             : Posting::kFull;
}

// Finds the lane's count at which all requests for the peer before `position` are complete. Returns false if
// some of these requests have not been posted yet.
bool QueueDrain::seize_behind(uint32_t peer, uint64_t position, uint64_t* count_taken) const {
  const uint32_t oldest = peers_[peer].waiting.first;
  if (position_ < position || (oldest != kNone && position_of(oldest) < position)) return false;
  *count_taken = endpoint_.count_taken(peer, index_);
  return true;
}

// A signal has two words: one that NICs write and one that mapped ranks write. To set the signal, the NIC's
// word becomes the value minus the other word, which must be read first. Later requests for the peer wait.
// Once the word is read, everything before it on the lane is complete.
Posting QueueDrain::post_signal(UnderWay& one, const Window& there) {
  const Request& request = one.request;
  const Window* other = windows_.find(request.extent, kWordBytes);
  if (!is_word(other, request.extent))
    return refuse(posting_,
                  "the second word of the signal is outside every window or not aligned to 8 bytes");
  if (one.step == Step::kWaiting) {
    const RemoteWord word{request.peer, index_, other->region, request.extent - other->heap_offset};
    const Posting posting = check(posting_, endpoint_.read_word(word, posting_ + 1));
    if (posting != Posting::kTaken) return posting;
    one.step = Step::kAnswering;
  }
  if (one.step != Step::kAnswered) return Posting::kFull;
  const RemoteWord word{request.peer, index_, there.region, request.place - there.heap_offset};
  return check(posting_, endpoint_.write_word(word, request.operand - one.progress, 0));
}

void QueueDrain::note_value(uint64_t cookie, uint64_t value) {
  UnderWay& one = at(cookie - 1);
  one.progress = value;
  if (one.step == Step::kAnswering) one.step = Step::kAnswered;
}

// Adds to the same word may overtake each other, so waiting for the last add means waiting for all adds.
void QueueDrain::order_behind_answers(const Request& request) {
  Peer& peer = peers_[request.peer];
  if (peer.answers.count_taken <= peer.count_done) return;
  const bool commutes =
      adds(request.operation) && peer.answers.is_one_place && peer.answers.place == request.place;
  if (commutes) return;
  endpoint_.fence(request.peer, index_);
  peer.answers = {};
}

// Earlier outstanding operations, if any, are adds to the same word, because all other operations were
// fenced.
void QueueDrain::note_answer(const Request& request) {
  peers_[request.peer].answers = {endpoint_.count_taken(request.peer, index_), request.place,
                                  adds(request.operation)};
}

Posting QueueDrain::refuse(uint64_t position, const std::string& cause) {
  const Request& request = at(position).request;
  failure_.reason = SymmAbort::kRefused;
  base::append(failure_.text,
               "put queue %u, descriptor %llu (operation %u, rank %u, operand 0x%llx, extent 0x%llx, place "
               "0x%llx): %s",
               index_, wide(position), static_cast<unsigned>(request.operation), request.peer,
               wide(request.operand), wide(request.extent), wide(request.place), cause.c_str());
  return Posting::kRefused;
}

Posting QueueDrain::check(uint64_t position, Posting posting) {
  if (posting != Posting::kRefused) return posting;
  const std::string& error = endpoint_.error(at(position).request.peer);
  if (error.empty()) return refuse(position, endpoint_.refusal());
  failure_ = {SymmAbort::kNetworkFailed, error};
  return posting;
}

// A position that its producer has not written yet may precede positions that are already written.
void QueueDrain::mark() {
  mark_ = position_;
  PutDescriptor descriptor;
  for (uint64_t ahead = 0; ahead < queues_.depth(); ++ahead) {
    if (queues_.read(index_, position_ + ahead, &descriptor)) mark_ = position_ + ahead + 1;
  }
}

void QueueDrain::publish_consumed() {
  while (!kept_.empty() && queues_.has_left(index_, kept_.front())) kept_.pop_front();
  const uint64_t free = kept_.empty() ? position_ : kept_.front();
  if (consumed_ == free) return;
  consumed_ = free;
  queues_.publish_consumed(index_, consumed_);
}

// Must happen before the completed prefix advances: an index is unique only among incomplete positions.
void QueueDrain::publish_completed() {
  tell_complete();
  const uint64_t before = completed_;
  while (completed_ != position_ && is_complete(at(completed_))) ++completed_;
  if (completed_ != before) queues_.publish_completed(index_, completed_);
}

void QueueDrain::tell_complete() {
  std::erase_if(untold_, [&](uint32_t number) {
    List& untold = peers_[number].untold;
    while (untold.first != kNone && is_complete(under_way_[untold.first])) {
      const uint64_t position = position_of(untold.first);
      const UnderWay& one = under_way_[take_first(untold)];
      if (has_value(one.request.operation)) {
        queues_.tell_value(index_, position, one.progress);
      } else {
        queues_.tell(index_, position);
      }
    }
    return untold.first == kNone;
  });
}

// A descriptor that waits for another queue times out with that queue.
std::optional<uint32_t> QueueDrain::awaited_peer() const {
  if (completed_ == position_) return std::nullopt;
  const UnderWay& oldest = at(completed_);
  const bool awaits_queue =
      oldest.request.operation == PutOperation::kAwaitQueue && oldest.step != Step::kPosted;
  return awaits_queue ? std::nullopt : std::optional(oldest.request.peer);
}

}  // namespace verbena::symm
