#include "transport/loopback.h"

#include <numeric>

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
  return loopback;
}

base::Outcome Loopback::post(uint32_t rail, verbs::WorkRequest request, uint32_t* outstanding) {
  // At most tickets_.size() operations are outstanding, each rail completes in order; a slot found busy
  // (rails out of step) is passed over.
  while (tickets_[next_ticket_ % tickets_.size()].outstanding != nullptr) ++next_ticket_;
  const uint32_t slot = next_ticket_++ % static_cast<uint32_t>(tickets_.size());
  tickets_[slot].outstanding = outstanding;
  request.signaled = true;
  request.cookie = make_cookie(rail, slot);
  ++*outstanding;
  ++outstanding_;
  return link_.pair(rail).post({&request, 1});
}

base::Outcome Loopback::flush(uint32_t rail, const void* address, uint32_t remote_key,
                              uint32_t* outstanding) {
  return post(rail,
              {.opcode = verbs::Opcode::kRead,
               .local = scratch_.get(),
               .local_key = scratch_regions_[rail].local_key(),
               .length = 1,
               .remote_key = remote_key,
               .remote = reinterpret_cast<uintptr_t>(address)},
              outstanding);
}

base::Outcome Loopback::copy(uint32_t rail, const void* source, uint32_t local_key, void* target,
                             uint32_t remote_key, uint32_t length_bytes, uint32_t* outstanding) {
  return post(rail,
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
  bool is_good = true;
  const bool ok = link_.poll([&](const verbs::Completion& completion, uint32_t queue_pair) {
    Ticket& ticket = tickets_[cookie_value(completion.cookie)];
    --outstanding_;
    --*ticket.outstanding;
    ticket.outstanding = nullptr;
    if (completion.error != 0 && is_good) {
      *failure = link_.describe_failure(completion, queue_pair);
      is_good = false;
    }
  });
  if (!ok) *failure = "completion queue failed";
  return ok && is_good;
}

}  // namespace verbena::transport
