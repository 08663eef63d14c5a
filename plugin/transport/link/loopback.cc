#include "transport/link/loopback.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/clock.h"
#include "base/lasting.h"
#include "base/log.h"
#include "base/parameters.h"
#include "transport/link/advice.h"

namespace verbena::transport {

namespace {

struct Loopbacks {
  std::mutex mutex;
  std::map<std::pair<int, const Nic*>, std::weak_ptr<Loopback>> by_place;

  bool is_idle() {
    const std::lock_guard lock(mutex);
    return std::ranges::all_of(by_place, [](const auto& entry) { return entry.second.expired(); });
  }
};

Loopbacks& get_loopbacks() {
  static const base::Lasting<Loopbacks> loopbacks;
  return *loopbacks;
}

}  // namespace

std::shared_ptr<Loopback> Loopback::acquire(int gpu, const Nic& nic) {
  Loopbacks& all = get_loopbacks();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.by_place, [](const auto& entry) { return entry.second.expired(); });
  auto& entry = all.by_place[{gpu, &nic}];
  if (auto loopback = entry.lock()) return loopback;
  auto loopback = std::shared_ptr<Loopback>(new Loopback(nic));
  entry = loopback;
  return loopback;
}

Loopback::Loopback(const Nic& nic) : rails_(nic.rails.size()) {
  for (size_t r = 0; r < rails_.size(); ++r) rails_[r].device = nic.rails[r];
}

base::Outcome Loopback::make(Rail& rail) {
  auto region = verbs::MemoryRegion::register_memory(*rail.device, scratch_.get(), sizeof(Scratch), {});
  if (!region) return region.error();
  Link::Options options;
  options.rails = {&rail.device, 1};
  options.send_depth = kDepth;
  options.operations = {.send_imm = false, .write = true, .write_imm = false, .read = true};
  auto link = Link::create(options);
  if (!link) return link.error();
  protocol::RailRecord address;
  protocol::QueuePairRecord pair;
  link->describe({&address, 1}, {&pair, 1});
  if (auto outcome = link->connect({&address, 1}, {&pair, 1}, {{0}}); !outcome) return outcome;
  rail.scratch_region = std::move(*region);
  rail.link = std::move(*link);
  rail.slots.resize(kDepth);
  return {};
}

// Creates the rail's queue pair if there is none or it does not work, at most once in VERBENA_RAIL_RETRY_MS.
bool Loopback::is_working(Rail& rail) {
  const bool is_made = !rail.slots.empty();
  if (is_made && rail.cause.empty()) return true;
  const int64_t now_ns = base::monotonic_ns();
  if (now_ns < rail.retry_at_ns) return false;
  rail.retry_at_ns = now_ns + base::parameters().rail_retry_ms * base::kNsPerMs;
  if (is_made ? rebuild(rail) : make(rail).is_ok()) {
    rail.cause.clear();
  } else if (rail.cause.empty()) {
    rail.cause = "rail " + rail.device->name() + ":" + std::to_string(rail.device->port_number()) +
                 ": the plugin cannot create the queue pair that connects this port to itself. An earlier "
                 "line of the log says why";
  }
  return rail.cause.empty();
}

// Returns false if the operation cannot be posted now.
bool Loopback::post(LoopbackUser& user, uint32_t ticket_index) {
  auto& ticket = user.tickets_[ticket_index];
  Rail& rail = rails_[ticket.rail];
  if (!is_working(rail) || rail.link.pair(0).free_slots() == 0) return false;
  // A slot is free, because no more operations are posted than there are slots.
  while (rail.slots[rail.next_slot % kDepth].is_posted) ++rail.next_slot;
  const uint32_t slot = rail.next_slot++ % kDepth;
  verbs::WorkRequest request = ticket.request;
  if (ticket.is_flush) {
    request.local = scratch_.get();
    request.local_key = rail.scratch_region.local_key();
  }
  request.signaled = true;
  request.cookie = slot;
  if (!rail.link.pair(0).post(request)) {
    give_up(rail, rail.link.describe(0) + ": cannot post a request");
    return false;
  }
  rail.slots[slot] = {&user, ticket_index, true};
  ticket.state.store(LoopbackUser::State::kPosted, std::memory_order_relaxed);
  return true;
}

void Loopback::finish(Rail& rail, const verbs::Completion& completion) {
  Slot& slot = rail.slots[completion.cookie % kDepth];
  if (!rail.cause.empty() || !slot.is_posted) return;  // a flushed request
  if (completion.error != 0) [[unlikely]] {
    const bool is_final = !base::parameters().failover || verbs::is_request_at_fault(completion.error);
    const std::string cause = rail.link.describe_failure(completion, 0);
    if (is_final && slot.user != nullptr && slot.user->failure_.empty()) {
      slot.user->failure_ = cause;
      slot.user->failed_ = slot.user->tickets_[slot.ticket].outstanding;
    }
    return give_up(rail, cause);
  }
  rail.is_reported = false;
  if (slot.user != nullptr)
    slot.user->tickets_[slot.ticket].state.store(LoopbackUser::State::kDone, std::memory_order_release);
  slot = {};
}

// Outstanding operations wait for a new queue pair. It is created after the old one has been destroyed, so
// that no operation runs twice at the same time.
void Loopback::give_up(Rail& rail, const std::string& cause) {
  rail.cause = cause;
  if (!std::exchange(rail.is_reported, true))
    base::log_warn("loopback: %s. The plugin creates the queue pair again", cause.c_str());
  rail.link.pair(0).stop();
  for (Slot& slot : rail.slots) {
    if (slot.user != nullptr)
      slot.user->tickets_[slot.ticket].state.store(LoopbackUser::State::kWaiting, std::memory_order_release);
    slot = {};
  }
}

// Returns true after the old queue pair has been destroyed, together with all its requests. Completions that
// are left have a queue pair number that is no longer in use.
bool Loopback::rebuild(Rail& rail) {
  protocol::QueuePairRecord pair;
  protocol::RailRecord address;
  return rail.link.renew(0, &pair, &address) && rail.link.connect_one(0, address, pair);
}

// After the call returns, the memory of the user's operations may be freed or reused.
void Loopback::withdraw(LoopbackUser& user) {
  for (Rail& rail : rails_) {
    bool is_busy = false;
    for (Slot& slot : rail.slots) {
      if (slot.user != &user) continue;
      slot.user = nullptr;
      is_busy = true;
    }
    if (!is_busy) continue;
    // Suppresses the log line, because the rail has not failed.
    const bool was_reported = std::exchange(rail.is_reported, true);
    give_up(rail, rail.link.describe(0) + ": a connection was closed during an operation");
    rail.is_reported = was_reported;
    if (rebuild(rail)) rail.cause.clear();
  }
}

// --- LoopbackUser.

LoopbackUser::~LoopbackUser() {
  if (outstanding_ == 0) return;
  const std::lock_guard lock(shared_->mutex_);
  shared_->withdraw(*this);
}

void LoopbackUser::flush(uint32_t rail, const void* address, uint32_t remote_key, uint32_t* outstanding) {
  add(rail,
      {.opcode = verbs::Opcode::kRead,
       .length = 1,
       .remote_key = remote_key,
       .remote = reinterpret_cast<uintptr_t>(address)},
      true, outstanding);
}

void LoopbackUser::copy(uint32_t rail, const void* source, uint32_t local_key, void* target,
                        uint32_t remote_key, uint32_t length_bytes, uint32_t* outstanding) {
  add(rail,
      {.opcode = verbs::Opcode::kWrite,
       .local = source,
       .local_key = local_key,
       .length = length_bytes,
       .remote_key = remote_key,
       .remote = reinterpret_cast<uintptr_t>(target)},
      false, outstanding);
}

void LoopbackUser::add(uint32_t rail, const verbs::WorkRequest& request, bool is_flush,
                       uint32_t* outstanding) {
  if (tickets_ == nullptr) {
    ticket_count_ = static_cast<uint32_t>(shared_->rails_.size()) * kDepth;
    tickets_ = std::make_unique<Ticket[]>(ticket_count_);
  }
  // A ticket is free, because no rail has more than kDepth operations.
  while (tickets_[next_ticket_].state.load(std::memory_order_relaxed) != State::kFree)
    next_ticket_ = (next_ticket_ + 1) % ticket_count_;
  Ticket& ticket = tickets_[next_ticket_];
  ticket.rail = rail;
  ticket.waiting_since_ns = 0;
  ticket.outstanding = outstanding;
  ticket.request = request;
  ticket.is_flush = is_flush;
  ticket.state.store(State::kWaiting, std::memory_order_relaxed);
  ++*outstanding;
  ++outstanding_;
  ++counts_[rail];
  // If another thread has the mutex, poll() posts the operation later.
  if (const std::unique_lock lock(shared_->mutex_, std::try_to_lock); lock)
    static_cast<void>(shared_->post(*this, next_ticket_));
}

bool LoopbackUser::look(std::string* failure) {
  if (const std::unique_lock lock(shared_->mutex_, std::try_to_lock); lock) {
    if (!post_waiting(failure)) return false;
  }
  for (uint32_t i = 0; i < ticket_count_; ++i) {
    Ticket& ticket = tickets_[i];
    if (ticket.state.load(std::memory_order_acquire) != State::kDone) continue;
    ticket.state.store(State::kFree, std::memory_order_relaxed);
    --*ticket.outstanding;
    --outstanding_;
    --counts_[ticket.rail];
  }
  return true;
}

bool LoopbackUser::post_waiting(std::string* failure) {
  for (Loopback::Rail& rail : shared_->rails_) {
    if (rail.slots.empty()) continue;
    const auto take = [&](const verbs::Completion& completion, uint32_t) {
      Loopback::finish(rail, completion);
    };
    if (rail.link.poll(take)) continue;
    *failure = "a completion queue of " + name_rails(rail.link) + " failed: " + kQueueAdvice;
    return false;
  }
  *failure = failure_;
  for (uint32_t i = 0; i < ticket_count_ && failure->empty(); ++i) {
    Ticket& ticket = tickets_[i];
    if (ticket.state.load(std::memory_order_relaxed) != State::kWaiting) continue;
    const std::string& cause = shared_->rails_[ticket.rail].cause;
    if (!shared_->post(*this, i) && !cause.empty() && is_overdue(ticket)) *failure = cause;
  }
  return failure->empty();
}

bool LoopbackUser::is_overdue(Ticket& ticket) {
  const int64_t now_ns = base::monotonic_ns();
  if (ticket.waiting_since_ns == 0) ticket.waiting_since_ns = now_ns;
  return now_ns - ticket.waiting_since_ns >= base::parameters().failover_timeout_ms * base::kNsPerMs;
}

}  // namespace verbena::transport
