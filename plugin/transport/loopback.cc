#include "transport/loopback.h"

#include <numeric>

#include "base/clock.h"
#include "base/log.h"
#include "base/parameters.h"
#include "transport/advice.h"

namespace verbena::transport {

base::Result<Loopback> Loopback::create(std::span<verbs::Device* const> rails,
                                        std::span<const verbs::LocalAddress> own_addresses,
                                        int traffic_class) {
  Loopback loopback;
  loopback.scratch_ = std::make_unique<Scratch>();
  for (verbs::Device* device : rails) {
    auto region = verbs::MemoryRegion::register_memory(*device, loopback.scratch_.get(), sizeof(Scratch), {});
    if (!region) return region.error();
    loopback.scratch_regions_.push_back(std::move(*region));
  }
  Link::Options options;
  options.rails = rails;
  options.queue_pairs = static_cast<uint32_t>(rails.size());
  options.send_depth = kDepth;
  options.operations = {.send_imm = false, .write = true, .write_imm = false, .read = true};
  options.traffic_class = traffic_class;
  options.addresses = own_addresses;
  auto link = Link::create(options);
  if (!link) return link.error();
  loopback.link_ = std::move(*link);

  std::vector<protocol::RailRecord> addresses(rails.size());
  std::vector<protocol::QueuePairRecord> pairs(rails.size());
  loopback.link_.describe(addresses, pairs);
  std::vector<uint8_t> own_rails(rails.size());
  std::iota(own_rails.begin(), own_rails.end(), uint8_t{0});
  if (auto outcome = loopback.link_.connect(addresses, pairs, own_rails); !outcome) return outcome.error();
  loopback.tickets_.resize(rails.size() * kDepth);
  loopback.rails_.resize(rails.size());
  return loopback;
}

void Loopback::post(uint32_t rail, const verbs::WorkRequest& request, uint32_t* outstanding) {
  // There is a free one, as no rail has more than kDepth; a slot found busy (rails out of step) is passed
  // over.
  while (tickets_[next_ticket_ % tickets_.size()].outstanding != nullptr) ++next_ticket_;
  const uint32_t slot = next_ticket_++ % static_cast<uint32_t>(tickets_.size());
  Ticket& ticket = tickets_[slot];
  ticket = {outstanding, rail, true, request};
  ticket.request.signaled = true;
  ticket.request.cookie = make_cookie(rail, slot);
  ++*outstanding;
  ++outstanding_;
  ++rails_[rail].waiting;
  if (rails_[rail].works()) post_ticket(slot);
}

void Loopback::post_ticket(uint32_t slot) {
  Ticket& ticket = tickets_[slot];
  Rail& rail = rails_[ticket.rail];
  if (!link_.pair(ticket.rail).post(ticket.request))
    return give_up(ticket.rail, link_.describe(ticket.rail) + ": cannot post");
  ticket.is_waiting = false;
  --rail.waiting;
  ++rail.posted;
}

void Loopback::flush(uint32_t rail, const void* address, uint32_t remote_key, uint32_t* outstanding) {
  post(rail,
       {.opcode = verbs::Opcode::kRead,
        .local = scratch_.get(),
        .local_key = scratch_regions_[rail].local_key(),
        .length = 1,
        .remote_key = remote_key,
        .remote = reinterpret_cast<uintptr_t>(address)},
       outstanding);
}

void Loopback::copy(uint32_t rail, const void* source, uint32_t local_key, void* target, uint32_t remote_key,
                    uint32_t length_bytes, uint32_t* outstanding) {
  post(rail,
       {.opcode = verbs::Opcode::kWrite,
        .local = source,
        .local_key = local_key,
        .length = length_bytes,
        .remote_key = remote_key,
        .remote = reinterpret_cast<uintptr_t>(target)},
       outstanding);
}

bool Loopback::poll(std::string* failure) {
  if (outstanding_ == 0) return true;
  const auto take = [&](const verbs::Completion& completion, uint32_t rail) {
    finish(completion, rail, failure);
  };
  if (!link_.poll(take)) *failure = "a completion queue of " + name_rails(link_) + " failed: " + kQueueAdvice;
  return failure->empty() && (broken_rails_ == 0 || repair(failure));
}

inline void Loopback::finish(const verbs::Completion& completion, uint32_t rail, std::string* failure) {
  Ticket& ticket = tickets_[cookie_value(completion.cookie)];
  --rails_[rail].posted;
  if (completion.error != 0) [[unlikely]] {
    ticket.is_waiting = true;
    ++rails_[rail].waiting;
    const bool is_final = !base::parameters().failover || verbs::is_request_at_fault(completion.error);
    const std::string cause = link_.describe_failure(completion, rail);
    if (rails_[rail].works() && is_final) *failure = cause;
    return give_up(rail, cause);
  }
  if (rails_[rail].works()) rails_[rail].failed_since_ns = 0;
  --outstanding_;
  --*ticket.outstanding;
  ticket.outstanding = nullptr;
}

void Loopback::give_up(uint32_t rail, const std::string& cause) {
  Rail& state = rails_[rail];
  if (!state.works()) return;
  state.cause = cause;
  if (state.failed_since_ns == 0) {
    state.failed_since_ns = base::monotonic_ns();
    base::log_warn("loopback: %s; it is built anew", cause.c_str());
  }
  ++broken_rails_;
  link_.pair(rail).stop();
}

bool Loopback::repair(std::string* failure) {
  const int64_t now_ns = base::monotonic_ns();
  const auto& parameters = base::parameters();
  for (uint32_t rail = 0; rail < rails_.size(); ++rail) {
    Rail& state = rails_[rail];
    if (state.works()) continue;
    if (now_ns - state.failed_since_ns >= parameters.failover_timeout_ms * base::kNsPerMs) {
      *failure = state.cause;
      return false;
    }
    // What is posted is flushed soon, and would be done twice at once.
    if (state.posted != 0 || now_ns < state.retry_at_ns) continue;
    state.retry_at_ns = now_ns + parameters.rail_retry_ms * base::kNsPerMs;
    if (!renew(rail)) continue;
    --broken_rails_;
    state.cause.clear();
    for (uint32_t slot = 0; slot < tickets_.size() && state.works(); ++slot) {
      const Ticket& ticket = tickets_[slot];
      if (ticket.outstanding != nullptr && ticket.rail == rail && ticket.is_waiting) post_ticket(slot);
    }
  }
  return true;
}

bool Loopback::renew(uint32_t rail) {
  protocol::QueuePairRecord pair;
  protocol::RailRecord address;
  link_.bury(rail);
  return link_.renew(rail, &pair, &address) && link_.connect_one(rail, address, pair);
}

}  // namespace verbena::transport
