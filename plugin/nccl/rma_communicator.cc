#include "nccl/rma_communicator.h"

#include <algorithm>

#include "base/log.h"
#include "base/parameters.h"

namespace verbena::nccl {

using verbena::EndpointCompletion;
using verbena::Posting;

namespace {

constexpr size_t kRequestsPerBlock = 256;
// A test of an unfinished request usually costs one load. One test in kTestsPerProgress makes progress, for
// callers that only test; more often if the caller tests one request repeatedly.
constexpr uint32_t kTestsPerProgress = 1024, kTestsOfOnePerProgress = 32;

unsigned long long wide(uint64_t value) {
  return value;
}

// Adds to a counter that only this thread writes.
void count(std::atomic<uint32_t>& counter, uint32_t change) {
  counter.store(counter.load(std::memory_order_relaxed) + change, std::memory_order_release);
}

}  // namespace

// --- Connection setup.

RmaCommunicator::RmaCommunicator(bootstrap::Bootstrap bootstrap, std::shared_ptr<transport::NicRegistry> nics,
                                 const transport::Nic& nic)
    : nics_(std::move(nics)),
      device_(nic.name),
      rank_(bootstrap.rank()),
      count_ranks_(bootstrap.count_ranks()),
      bootstrap_(std::move(bootstrap)),
      is_joined_(count_ranks_),
      lanes_(size_t{count_ranks_} * kLanes),
      is_lost_(count_ranks_) {
  communicator = this;
  waiting_.reserve(lanes_.size());
}

base::Result<std::unique_ptr<RmaCommunicator>> RmaCommunicator::open(
    bootstrap::Bootstrap bootstrap, std::shared_ptr<transport::NicRegistry> nics, const transport::Nic& nic,
    uint64_t nonce, bool joins_all) {
  std::unique_ptr<RmaCommunicator> made(new RmaCommunicator(std::move(bootstrap), std::move(nics), nic));
  bootstrap::Bootstrap& group = made->bootstrap_;
  group.set_timeout_ms(base::parameters().bootstrap_timeout_ms);
  const Outcome opened = made->open_endpoint(nic, nonce);
  if (auto agreed = group.all_agree(opened, base::last_failure()); !agreed) return agreed.error();
  const auto all = group.gather(uint32_t{made->endpoint_->has_atomics()});
  if (!all) return all.error();
  made->asks_agents_ = std::ranges::min(*all) == 0;
  if (made->asks_agents_) made->endpoint_->add_by_agents();
  if (joins_all) {
    if (auto joined = made->join_peers(1); !joined) return joined.error();
  }
  return made;
}

// All ranks send as many rails as the rank with the most rails, so that addresses have equal lengths.
Outcome RmaCommunicator::open_endpoint(const transport::Nic& nic, uint64_t nonce) {
  const auto rails = bootstrap_.gather(static_cast<uint32_t>(nic.rails.size()));
  if (!rails) return rails.error();
  uint64_t max_cq_entries = UINT64_MAX;
  for (const verbs::Device* device : nic.rails)
    max_cq_entries = std::min<uint64_t>(max_cq_entries, device->max_cq_entries());
  std::string cause;
  endpoint_ =
      transport::OneSidedEndpoint::open_on({.rank = rank_,
                                            .count_ranks = count_ranks_,
                                            .nonce = nonce,
                                            .rails = std::ranges::max(*rails),
                                            .lanes = kLanes,
                                            .send_depth = transport::OneSidedEndpoint::fit_send_depth(
                                                max_cq_entries, count_ranks_, kLanes, kSendDepth),
                                            .is_observed = true},
                                           {.devices = nic.rails, .owned = {}, .keeps_alive = nics_}, &cause);
  return endpoint_ == nullptr ? Outcome(base::Error{base::Status::kSystem, 0}) : Outcome();
}

RmaCommunicator::~RmaCommunicator() {
  if (endpoint_ == nullptr) return;
  const protocol::LaneCounts failures = endpoint_->count_failures();
  endpoint_.reset();  // afterwards the network does not access memory that its owner frees next
  base::log_info(
      "rma: rank %u of %u on %s: closed: %llu puts and %llu gets of %llu bytes, %llu signals; %llu "
      "operations waited for queue space; queue pairs failed %llu, revived %llu, requests repeated %llu",
      rank_, count_ranks_, device_.c_str(), wide(counts_.puts), wide(counts_.gets), wide(counts_.bytes),
      wide(counts_.signals), wide(counts_.waited), wide(failures.failed_queue_pairs),
      wide(failures.revived_queue_pairs), wide(failures.replayed_requests));
}

// All peers connect, or none: a later attempt cannot connect a peer that is connected on one side only, so
// each attempt begins with new addresses.
Outcome RmaCommunicator::join_peers(uint32_t stride) {
  std::vector<uint32_t> due;
  for (uint32_t peer = 0; peer < count_ranks_; ++peer)
    if ((peer + count_ranks_ - rank_) % count_ranks_ % stride == 0 && !is_joined_[peer]) due.push_back(peer);
  const Outcome agreed = prepare_peers(due);
  for (const uint32_t peer : due) {
    if (agreed) {
      endpoint_->publish(peer);
      is_joined_[peer] = true;
    } else {
      endpoint_->drop(peer);
    }
  }
  return agreed;
}

Outcome RmaCommunicator::prepare_peers(const std::vector<uint32_t>& due) {
  const size_t part_bytes = endpoint_->address_bytes();
  std::vector<std::byte> mine(part_bytes * count_ranks_), theirs(mine.size());
  Outcome state;
  std::string cause;
  for (const uint32_t peer : due) {
    const auto address = endpoint_->local_address(peer, &cause);
    if (address.size() != part_bytes) {
      state = base::Error{base::Status::kSystem, 0};
      break;
    }
    std::copy(address.begin(), address.end(), mine.begin() + static_cast<ptrdiff_t>(peer * part_bytes));
  }
  if (auto agreed = bootstrap_.all_agree(state, base::last_failure()); !agreed) return agreed;
  if (auto exchanged = bootstrap_.exchange(mine, theirs); !exchanged) return exchanged;
  for (const uint32_t peer : due) {
    if (endpoint_->prepare(peer, std::span(theirs).subspan(peer * part_bytes, part_bytes), &cause)) continue;
    state = base::Error{base::Status::kRemote, 0};
    break;
  }
  return bootstrap_.all_agree(state, base::last_failure());
}

base::Result<RmaContext*> RmaCommunicator::create_context(const RmaContextOptions& options) {
  const std::lock_guard lock(mutex_);
  endpoint_->set_traffic_class(options.traffic_class);
  if (auto joined = join_peers(options.rank_stride); !joined) return joined.error();
  const auto is_free = [](const RmaContext& context) {
    return !context.is_open.load(std::memory_order_acquire) &&
           context.under_way.load(std::memory_order_acquire) == 0;
  };
  const auto found = std::find_if(contexts_.begin(), contexts_.end(), is_free);
  RmaContext& made = found == contexts_.end() ? contexts_.emplace_back() : *found;
  made.communicator = this;
  made.first_lane = next_lane_;
  made.is_open.store(true, std::memory_order_release);
  next_lane_ = (next_lane_ + options.contexts) % kLanes;
  return &made;
}

void RmaCommunicator::destroy_context(RmaContext* context) {
  context->is_open.store(false, std::memory_order_release);
  has_closing_.store(true, std::memory_order_release);
}

// --- Memory.

// Chooses a number that is free on every rank. Ranks usually free their regions in the same order, so the
// lowest free number is usually the same.
base::Result<uint32_t> RmaCommunicator::choose_region_id() {
  struct Free {
    uint32_t lowest, end;
  };
  const auto lowest =
      static_cast<uint32_t>(std::find(regions_.begin(), regions_.end(), nullptr) - regions_.begin());
  uint32_t end = static_cast<uint32_t>(regions_.size());
  while (end > 0 && regions_[end - 1] == nullptr) --end;
  const auto all = bootstrap_.gather(Free{lowest, end});
  if (!all) return all.error();
  const bool is_same = std::all_of(all->begin(), all->end(),
                                   [&](const Free& one) { return one.lowest == all->front().lowest; });
  if (is_same) return all->front().lowest;
  return std::ranges::max(*all, {}, &Free::end).end;
}

base::Result<RmaRegion*> RmaCommunicator::register_memory(const verbena::EndpointMemory& memory) {
  const std::lock_guard lock(mutex_);
  const auto id = choose_region_id();
  if (!id) return id.error();
  std::string cause;
  Outcome state =
      endpoint_->add_region(*id, memory, &cause) ? Outcome() : Outcome(base::Error{base::Status::kSystem, 0});
  if (auto agreed = bootstrap_.all_agree(state, base::last_failure()); !agreed) {
    if (state.is_ok()) endpoint_->remove_region(*id);
    return agreed.error();
  }
  const std::vector<std::byte> mine = endpoint_->region_address(*id);
  std::vector<std::byte> all(mine.size() * count_ranks_);
  if (auto gathered = bootstrap_.all_gather(mine, all); !gathered) {
    endpoint_->remove_region(*id);
    return gathered.error();
  }
  for (uint32_t peer = 0; peer < count_ranks_ && state.is_ok(); ++peer) {
    if (!endpoint_->add_remote_region(peer, *id, std::span(all).subspan(peer * mine.size(), mine.size()),
                                      &cause))
      state = base::Error{base::Status::kRemote, 0};
  }
  if (auto agreed = bootstrap_.all_agree(state, base::last_failure()); !agreed) {
    endpoint_->remove_remote_regions(*id);
    endpoint_->remove_region(*id);
    return agreed.error();
  }
  if (*id >= regions_.size()) regions_.resize(*id + 1);
  regions_[*id] = std::make_unique<RmaRegion>();
  regions_[*id]->communicator = this;
  regions_[*id]->id = *id;
  regions_[*id]->bytes = memory.bytes;
  return regions_[*id].get();
}

void RmaCommunicator::release(RmaRegion& region) {
  const uint32_t id = region.id;
  endpoint_->remove_remote_regions(id);
  endpoint_->remove_region(id);
  regions_[id].reset();
}

void RmaCommunicator::deregister_memory(RmaRegion* region) {
  const std::lock_guard lock(mutex_);
  if (region->under_way.load(std::memory_order_acquire) == 0) return release(*region);
  closing_.push_back(region);
  has_closing_.store(true, std::memory_order_release);
}

// Frees objects whose release was postponed by outstanding operations, and requests that will not be tested.
void RmaCommunicator::sweep() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return;  // a collective call is in progress: retry later
  for (auto& block : pool_) {
    for (RmaRequest& request : block) {
      if (request.context == nullptr || !request.is_done) continue;
      if (!request.context->is_open.load(std::memory_order_acquire)) give_back(&request);
    }
  }
  std::erase_if(closing_, [&](RmaRegion* region) {
    if (region->under_way.load(std::memory_order_relaxed) != 0) return false;
    release(*region);
    return true;
  });
  has_closing_.store(!closing_.empty(), std::memory_order_relaxed);
}

// --- Requests.

RmaRequest* RmaCommunicator::take_request(RmaContext& context) {
  if (free_ == nullptr) [[unlikely]] {
    for (RmaRequest& request : pool_.emplace_back(kRequestsPerBlock)) {
      request.next = free_;
      free_ = &request;
    }
  }
  RmaRequest* const taken = free_;
  free_ = taken->next;
  *taken = {};
  taken->context = &context;
  count(context.under_way, 1);
  return taken;
}

void RmaCommunicator::give_back(RmaRequest* request) {
  count(request->context->under_way, ~0U);
  request->context = nullptr;
  request->next = free_;
  free_ = request;
}

void RmaCommunicator::finish(Lane& lane, RmaRequest* request, bool has_failed) {
  lane.adds -= request->is_last_of_add ? 1 : 0;
  for (RmaRegion* region : request->regions)
    if (region != nullptr) count(region->under_way, ~0U);
  request->is_done = true;
  request->has_failed = has_failed || request->is_refused;
  const bool is_tested = request->context->is_open.load(std::memory_order_acquire) && !request->is_untested;
  if (!is_tested) [[unlikely]]
    give_back(request);
}

Posting RmaCommunicator::move_bytes(const Lane& lane, RmaRequest& request) {
  if (!request.has_transfer) return Posting::kTaken;
  if (asks_agents_ && follows_signal(lane, request)) [[unlikely]]
    endpoint_->fence(request.transfer.peer, request.transfer.lane);
  const Posting posting =
      request.is_get ? endpoint_->get(request.transfer, 0) : endpoint_->put(request.transfer, 0);
  request.has_transfer = posting != Posting::kTaken;
  request.has_moved = posting == Posting::kTaken;
  return posting;
}

// The operation is completely posted.
void RmaCommunicator::fly(Lane& lane, RmaRequest* request) {
  request->has_add = false;
  request->target = endpoint_->count_taken(request->transfer.peer, request->transfer.lane);
  lane.flying.append(request);
}

void RmaCommunicator::refuse(Lane& lane, RmaRequest* request) {
  if (!is_lost_[request->transfer.peer]) {
    base::log_warn("rma: rank %u: an operation on rank %u was rejected: %s", rank_, request->transfer.peer,
                   endpoint_->refusal().c_str());
  }
  has_error_.store(true, std::memory_order_relaxed);
  if (!request->has_moved) return finish(lane, request, true);
  request->is_refused = true;
  fly(lane, request);
}

// Posts the signals of moved operations in order, with one add for consecutive signals to one word.
// Operations without a signal may be among them. kFull: some are left.
Posting RmaCommunicator::add_moved(Lane& lane) {
  while (!lane.moved.is_empty()) {
    uint64_t sum = 0;
    RmaRequest* last = nullptr;
    for (RmaRequest* request = lane.moved.first; request != nullptr; request = request->next) {
      if (!request->has_add) continue;
      if (last != nullptr && !Lane::is_same(request->word, last->word)) break;
      sum += request->addend;
      last = request;
    }
    const Posting posting = last == nullptr ? Posting::kTaken : endpoint_->add_word(last->word, sum, 0);
    if (posting == Posting::kFull) {
      lane.note_signals_anew();
      return posting;
    }
    if (last != nullptr && posting == Posting::kTaken) {
      last->is_last_of_add = true;
      ++lane.adds;
    }
    for (RmaRequest* request = nullptr; request != last || last == nullptr;) {
      if (lane.moved.is_empty()) break;
      request = lane.moved.take();
      --lane.count_moved;
      if (request->has_add && posting == Posting::kRefused) {
        refuse(lane, request);
      } else {
        fly(lane, request);
      }
    }
  }
  lane.signalled.clear();
  return Posting::kTaken;
}

// By address, as several regions may have the same memory.
bool RmaCommunicator::overlap(const verbena::RemoteWord& word, const verbena::Transfer& bytes) const {
  const uint64_t at = endpoint_->find_remote_base(word.peer, word.region) + word.offset;
  const uint64_t begin = endpoint_->find_remote_base(bytes.peer, bytes.remote_region) + bytes.remote_offset;
  return at < begin + bytes.bytes && begin < at + sizeof(uint64_t);
}

// Returns whether the operation's bytes overlap a word to which an earlier, unposted signal will be added.
bool RmaCommunicator::needs_signals(const Lane& lane, const RmaRequest& request) const {
  if (!request.has_transfer) return false;
  return std::ranges::any_of(
      lane.signalled, [&](const verbena::RemoteWord& word) { return overlap(word, request.transfer); });
}

// Returns whether the operation's bytes overlap a word to which the peer's agent may not have added yet. A
// device adds before it carries out later requests of the lane; an agent adds when it polls.
bool RmaCommunicator::follows_signal(const Lane& lane, const RmaRequest& request) const {
  if (lane.adds == 0) return false;
  for (const RmaRequest* one = lane.flying.first; one != nullptr; one = one->next)
    if (one->is_last_of_add && overlap(one->word, request.transfer)) return true;
  return false;
}

// Posts waiting operations while there is space. Returns true if none waits any more.
bool RmaCommunicator::post_batch(Lane& lane) {
  while (lane.adds < kMaxAdds) {
    Posting posting = Posting::kTaken;
    while (!lane.waiting.is_empty() && lane.count_moved < kMaxBatch) {
      RmaRequest* const request = lane.waiting.first;
      if (needs_signals(lane, *request)) break;
      posting = move_bytes(lane, *request);
      if (posting == Posting::kFull) break;
      lane.waiting.take();
      if (posting == Posting::kTaken) {
        lane.append_moved(request);
      } else {
        refuse(lane, request);
      }
    }
    if (add_moved(lane) == Posting::kFull || posting == Posting::kFull) return false;
    if (lane.waiting.is_empty()) return true;
  }
  return false;
}

Outcome RmaCommunicator::submit(RmaContext& context, uint32_t index, RmaRequest* request, bool is_hinted,
                                void** out) {
  const uint32_t peer = request->transfer.peer;
  if (peer >= count_ranks_) [[unlikely]] {
    give_back(request);
    return base::fail(base::Status::kInvalidArgument, "rma: rank %u of %u does not exist", peer,
                      count_ranks_);
  }
  const uint32_t number = (context.first_lane + index) % kLanes;
  request->transfer.lane = request->word.lane = number;
  request->word.peer = peer;
  Lane& lane = lanes_[size_t{peer} * kLanes + number];
  Posting posting = lane.is_idle() ? move_bytes(lane, *request) : Posting::kFull;
  const bool leaves_now = posting == Posting::kTaken;
  if (leaves_now && request->has_add) {
    posting = endpoint_->add_word(request->word, request->addend, 0);
    request->is_last_of_add = posting == Posting::kTaken;
    lane.adds += request->is_last_of_add ? 1 : 0;
  }
  for (RmaRegion* region : request->regions)
    if (region != nullptr) count(region->under_way, 1);
  if (posting == Posting::kRefused) [[unlikely]] {
    request->is_refused = request->is_untested = true;
    if (request->has_moved) {
      fly(lane, request);
    } else {
      finish(lane, request, true);
    }
    const bool is_of_peer = !endpoint_->error(peer).empty();
    return base::fail(is_of_peer ? base::Status::kRemote : base::Status::kInvalidArgument,
                      "rma: rank %u: an operation on rank %u was rejected: %s", rank_, peer,
                      endpoint_->refusal().c_str());
  }
  if (posting == Posting::kTaken) [[likely]] {
    fly(lane, request);
  } else {
    if (leaves_now) {
      lane.append_moved(request);
    } else {
      lane.waiting.append(request);
    }
    ++counts_.waited;
    if (!lane.is_listed) waiting_.push_back(static_cast<uint32_t>(&lane - lanes_.data()));
    lane.is_listed = true;
  }
  if (!is_hinted) endpoint_->ring();
  *out = request;
  return {};
}

Outcome RmaCommunicator::put(RmaContext& context, uint32_t index, uint32_t peer, const RmaBytes& bytes,
                             const RmaSignal& signal, bool is_hinted, void** out) {
  RmaRequest* const request = take_request(context);
  request->transfer.peer = peer;
  if (bytes.bytes != 0) {
    if (bytes.local == nullptr || bytes.remote == nullptr) [[unlikely]] {
      give_back(request);
      return base::fail(base::Status::kInvalidArgument, "rma: a memory handle of a put of %llu bytes is NULL",
                        wide(bytes.bytes));
    }
    request->has_transfer = true;
    request->transfer.local_region = bytes.local->id;
    request->transfer.remote_region = bytes.remote->id;
    request->transfer.local_offset = bytes.local_offset;
    request->transfer.remote_offset = bytes.remote_offset;
    request->transfer.bytes = bytes.bytes;
    request->regions = {bytes.local, bytes.remote, signal.region};
    ++counts_.puts;
    counts_.bytes += bytes.bytes;
  }
  if (signal.region != nullptr) {
    request->has_add = true;
    request->word.region = signal.region->id;
    request->word.offset = signal.offset;
    request->addend = signal.addend;
    request->regions[2] = signal.region;
    ++counts_.signals;
  }
  if (request->has_transfer || request->has_add) [[likely]]
    return submit(context, index, request, is_hinted, out);
  request->is_done = true;  // it has no bytes and is complete
  *out = request;
  return {};
}

Outcome RmaCommunicator::get(RmaContext& context, uint32_t index, uint32_t peer, const RmaBytes& bytes,
                             bool is_hinted, void** out) {
  RmaRequest* const request = take_request(context);
  *out = request;
  if (bytes.bytes == 0) {
    request->is_done = true;
    return {};
  }
  if (bytes.local == nullptr || bytes.remote == nullptr) [[unlikely]] {
    give_back(request);
    return base::fail(base::Status::kInvalidArgument, "rma: a memory handle of a get of %llu bytes is NULL",
                      wide(bytes.bytes));
  }
  request->is_get = request->has_transfer = true;
  request->transfer = {
      peer, 0, bytes.local->id, bytes.remote->id, bytes.local_offset, bytes.remote_offset, bytes.bytes};
  request->regions = {bytes.local, bytes.remote, nullptr};
  ++counts_.gets;
  counts_.bytes += bytes.bytes;
  return submit(context, index, request, is_hinted, out);
}

// --- Progress.

uint64_t RmaCommunicator::fail_lane(Lane& lane) {
  uint64_t lost = 0;
  for (Queue* queue : {&lane.flying, &lane.moved, &lane.waiting}) {
    for (; !queue->is_empty(); ++lost) finish(lane, queue->take(), true);
  }
  lane.count_moved = 0;
  lane.signalled.clear();
  return lost;
}

// NCCL does not report this loss, so only the log line shows it.
void RmaCommunicator::tell_loss(uint32_t peer, uint64_t lost) {
  has_error_.store(true, std::memory_order_relaxed);
  if (!is_lost_[peer]) {
    base::log_warn(
        "rma: rank %u of %u on %s: the connection to rank %u failed while %llu operations of one lane were "
        "outstanding: %s. Kernels and streams that wait for these operations will not continue",
        rank_, count_ranks_, device_.c_str(), peer, wide(lost), endpoint_->error(peer).c_str());
  } else if (lost != 0) {
    base::log_warn(
        "rma: rank %u of %u on %s: the connection to rank %u has failed, and %llu more operations to that "
        "rank failed",
        rank_, count_ranks_, device_.c_str(), peer, wide(lost));
  }
  is_lost_[peer] = true;
}

void RmaCommunicator::poll() {
  uint32_t count = 0;
  do {
    count = endpoint_->poll(polled_);
    for (const EndpointCompletion& told : std::span(polled_).first(count)) {
      Lane& lane = lanes_[size_t{told.peer} * kLanes + told.lane];
      while (!lane.flying.is_empty() && lane.flying.first->target <= told.count_done)
        finish(lane, lane.flying.take(), false);
      if (told.has_failed) [[unlikely]]
        tell_loss(told.peer, fail_lane(lane));
    }
  } while (count == polled_.size());
}

void RmaCommunicator::post_waiting() {
  std::erase_if(waiting_, [&](uint32_t place) {
    Lane& lane = lanes_[place];
    if (!post_batch(lane)) return false;
    lane.is_listed = false;
    return true;
  });
}

Outcome RmaCommunicator::progress() {
  endpoint_->ring();
  poll();
  if (!waiting_.empty()) {
    post_waiting();
    endpoint_->ring();
  }
  if (has_closing_.load(std::memory_order_acquire)) [[unlikely]]
    sweep();
  return {};
}

Outcome RmaCommunicator::test(RmaRequest& request, int* done) {
  if (!request.is_done) {
    early_tests_ += last_early_ == &request ? kTestsPerProgress / kTestsOfOnePerProgress : 1;
    last_early_ = &request;
    if (early_tests_ >= kTestsPerProgress) {
      early_tests_ = 0;
      if (auto outcome = progress(); !outcome) return outcome;
    }
  }
  if (!request.is_done) return {};
  const bool has_failed = request.has_failed;
  give_back(&request);
  if (has_failed) return base::Error{base::Status::kRemote, 0};  // tell_loss() has reported it
  *done = 1;
  return {};
}

}  // namespace verbena::nccl
