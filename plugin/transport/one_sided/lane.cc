#include "transport/one_sided/lane.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/parameters.h"
#include "transport/link/write_order.h"
#include "transport/one_sided/add_agent.h"
#include "transport/one_sided/one_sided_endpoint.h"
#include "transport/recovery_times.h"

namespace verbena::transport {

using protocol::LaneOperationKind;
using protocol::LanePosted;
using verbs::OneSidedRequest;
using verbs::Opcode;

// --- Chains.

base::Outcome PairChain::append(const OneSidedRequest& request) {
  pending_.push_back(request);
  return pending_.size() < kMaxRequests ? base::Outcome() : ring();
}

base::Outcome PairChain::ring() {
  if (pending_.empty()) return {};
  pending_.back().signaled = true;
  auto outcome = pair_.post(pending_);
  pending_.clear();
  return outcome;
}

LaneCookie LaneCookie::parse(uint64_t value) {
  const auto names = static_cast<uint32_t>(value >> 32);
  const auto take = [&](uint32_t shift, uint32_t bits) { return names >> shift & ((1U << bits) - 1); };
  return {take(0, kLaneBits), take(kLaneBits, kRailBits), take(kLaneBits + kRailBits, kLifeBits),
          static_cast<uint32_t>(value)};
}

uint64_t LaneCookie::pack() const {
  const uint32_t of_life = life & ((1U << kLifeBits) - 1);
  return uint64_t{lane | rail << kLaneBits | of_life << (kLaneBits + kRailBits)} << 32 | position;
}

// --- Life.

Lane::Memory::Memory(uint32_t count_operations, uint32_t rails, uint32_t count_posted)
    : operations(count_operations),
      shares(size_t{count_operations} * rails),
      posted(size_t{count_posted} * rails),
      words(std::make_unique<uint64_t[]>(count_operations)) {}

base::Result<std::unique_ptr<Lane>> Lane::create(OneSidedEndpoint& endpoint, const Options& options,
                                                 std::vector<verbs::QueuePair> pairs) {
  const uint32_t ring = std::bit_ceil(options.send_depth);
  auto lane = std::make_unique<Lane>(
      endpoint, options, std::make_unique<Memory>(ring, static_cast<uint32_t>(options.rails.size()), ring));
  for (uint32_t q = 0; q < lane->rails(); ++q) {
    auto region = verbs::MemoryRegion::register_memory(lane->device(q), lane->memory_->words.get(),
                                                       ring * sizeof(uint64_t), {});
    if (!region && !lane->device(q).has_failed()) return region.error();
    lane->word_regions_.push_back(region ? std::move(*region) : verbs::MemoryRegion());
    lane->chains_[q].begin(std::move(pairs[q]));
  }
  return lane;
}

Lane::Lane(OneSidedEndpoint& endpoint, const Options& options, std::unique_ptr<Memory> memory)
    : Core({.rails = static_cast<uint32_t>(options.rails.size()),
            .lane = static_cast<uint8_t>(options.lane),
            .role = options.role,
            .send_depth = options.send_depth,
            .signal_interval = std::min(options.send_depth / 4, PairChain::kMaxInterval),
            .max_request_bytes = options.max_request_bytes,
            .min_stripe_bytes = static_cast<uint64_t>(base::parameters().min_stripe_bytes),
            .words_wait = std::any_of(
                options.rails.begin(), options.rails.end(),
                [&](const RailPair& rail) { return waits_for_writes(endpoint.device(rail.here)); }),
            .add_slots = options.add_rings != nullptr ? protocol::kAddSlots : 0,
            .times = read_recovery_times()},
           memory->storage()),
      endpoint_(endpoint),
      options_(options),
      memory_(std::move(memory)),
      observed_(endpoint.observe_lane(*this)) {}

Lane::~Lane() {
  stop();
  endpoint_.end_observation_of(observed_);
}

void Lane::stop() {
  for (PairChain& chain : chains_) chain.pair().stop();
}

verbs::Device& Lane::device(uint32_t q) const {
  return endpoint_.device(options_.rails[q].here);
}

int64_t Lane::now_ns() const {
  return base::monotonic_ns();
}

// --- Operations.

void Lane::take(const Core::Operation& operation, const void* small) {
  const uint32_t slot = Core::post(operation);
  if (small != nullptr)
    std::memcpy(&memory_->words[slot], small, operation.length_bytes);
  else if (operation.kind == LaneOperationKind::kWriteWord)
    memory_->words[slot] = operation.operand;
  ++count_taken_;
  if (observed_ != nullptr) [[unlikely]] {
    observed_->note_post(turn_of(slot), operation.length_bytes, 0);
    observed_->end_post();
  }
  issue();
}

void Lane::post(uint32_t q, const Core::Request& request) {
  PairChain& chain = chains_[q];
  OneSidedRequest work;
  work.cookie = LaneCookie{index(), q, recovery().generation(q), request.position}.pack();
  work.signaled = request.is_signaled;
  work.fenced = request.is_fenced;
  work.length = static_cast<uint32_t>(request.length_bytes);
  if (request.slot == LanePosted::kAnswers) [[unlikely]] {
    write_answers(q, request, work);
  } else if (request.operation != nullptr) [[likely]] {
    const Core::Operation& operation = *request.operation;
    static constexpr Opcode kOpcodes[] = {Opcode::kWrite,    Opcode::kRead, Opcode::kWrite,
                                          Opcode::kFetchAdd, Opcode::kRead, Opcode::kWrite};
    work.opcode = kOpcodes[static_cast<size_t>(operation.kind)];
    work.addend = operation.operand;
    work.remote_key = operation.remote->keys[options_.rails[q].there];
    work.remote = operation.remote->base + operation.remote_offset + request.offset;
    if (operation.local == nullptr) {
      work.local = &memory_->words[request.slot];
      work.local_key = word_regions_[q].local_key();
    } else {
      work.local = operation.local->address + operation.local_offset + request.offset;
      work.local_key = operation.local->registrations[options_.rails[q].here].local_key();
    }
    if (operation.kind == LaneOperationKind::kAskAdd) [[unlikely]]
      write_entry(q, request, work);
    const bool is_host = operation.local == nullptr || operation.local->is_host;
    work.send_inline = work.opcode == Opcode::kWrite && is_host && work.length <= chain.pair().inline_bytes();
    if (observed_ != nullptr) [[unlikely]]
      observed_->note_chunk(turn_of(request.slot), observe::Path::kDirect, options_.rails[q].here,
                            chain.pair().number(), work.length);
  }
  note_refusal(q, chain.append(work));
}

// --- Adds by the peer's agent.

protocol::AddRing& Lane::ring_of_adds() const {
  return options_.add_rings->rings[options_.lane];
}

void Lane::write_entry(uint32_t q, const Core::Request& request, OneSidedRequest& work) {
  const Core::Operation& operation = *request.operation;
  const uint32_t slot = operation.asked_before % protocol::kAddSlots;
  protocol::AddEntry& entry = ring_of_adds().unsent[slot];
  entry = protocol::make_entry(operation.asked_before, operation.remote->id, operation.remote_offset,
                               operation.operand);
  asked_slots_[slot] = request.slot;
  const AddRings& rings = *options_.add_rings;
  work.local = &entry;
  work.length = sizeof(entry);
  work.local_key = rings.registrations[options_.rails[q].here].local_key();
  work.remote_key = rings.remote_keys[options_.rails[q].there];
  work.remote = rings.remote + options_.lane * sizeof(protocol::AddRing) +
                offsetof(protocol::AddRing, requests) + slot * sizeof(entry);
}

void Lane::write_answers(uint32_t q, const Core::Request& request, OneSidedRequest& work) {
  const AddRings& rings = *options_.add_rings;
  work.local = reinterpret_cast<const std::byte*>(ring_of_adds().applied) + request.offset;
  work.local_key = rings.registrations[options_.rails[q].here].local_key();
  work.remote_key = rings.remote_keys[options_.rails[q].there];
  work.remote = rings.remote + options_.lane * sizeof(protocol::AddRing) +
                offsetof(protocol::AddRing, answers) + request.offset;
  work.send_inline = work.length <= chains_[q].pair().inline_bytes();
}

bool Lane::take_answers() {
  bool is_any = false;
  while (awaits_answers()) {
    const uint32_t number = answered() % protocol::kAddSlots, slot = asked_slots_[number];
    uint64_t value = 0;
    if (!may_be_answered(slot) || !take_answer(ring_of_adds().answers[number], answered(), &value)) break;
    memory_->words[slot] = value;
    on_answered(slot);
    is_any = true;
  }
  return is_any;
}

void Lane::probe_agent() {
  probe(asked_slots_[answered() % protocol::kAddSlots]);
}

bool Lane::find_asked(uint32_t ahead, protocol::AddEntry* entry) const {
  const auto number = static_cast<uint16_t>(served() + ahead);
  return take_entry(ring_of_adds().requests[number % protocol::kAddSlots], number, entry);
}

void Lane::answer_asked(uint64_t value) {
  ring_of_adds().applied[served() % protocol::kAddSlots] = protocol::make_answer(served(), value);
  on_served(static_cast<uint16_t>(served() + 1));
}

void Lane::ring() {
  for (uint32_t q = 0; q < rails(); ++q) {
    if (chains_[q].has_pending()) note_refusal(q, chains_[q].ring());
  }
  if (refused_ != 0) [[unlikely]]
    give_up_refused();
}

// The error is handled later, when no function of the core is running.
void Lane::note_refusal(uint32_t q, base::Outcome outcome) {
  if (outcome) [[likely]]
    return;
  causes_[q] = describe(q) + ": the device rejected a request (errno " +
               std::to_string(outcome.error().errno_value) + "); see dmesg";
  refused_ |= 1U << q;
}

void Lane::give_up_refused() {
  for (uint32_t q = 0; q < rails() && !has_failed(); ++q) {
    if ((refused_ >> q & 1) == 0) continue;
    refused_ &= ~(1U << q);
    if (base::parameters().failover) {
      fail_queue_pair(q);
    } else {
      fail(protocol::LaneFailure::kRequest, q);
    }
  }
}

bool Lane::take_completion(const LaneCookie& cookie, const verbs::Completion& completion) {
  const uint32_t q = cookie.rail;
  constexpr uint32_t kLifeMask = (1U << LaneCookie::kLifeBits) - 1;
  if (q >= rails() || cookie.life != (recovery().generation(q) & kLifeMask) || !recovery().is_in_use(q))
      [[unlikely]]
    return false;
  if (completion.error == 0) [[likely]] {
    if (!is_under_way(q, cookie.position)) return false;
    chains_[q].pair().retire();
    on_completed(q, cookie.position);
    return true;
  }
  char text[320];
  std::snprintf(text, sizeof(text), ": %s (status %d, vendor error 0x%x)",
                verbs::describe_completion_error(completion.error), completion.error,
                completion.vendor_error);
  causes_[q] = describe(q) + text;
  if (!base::parameters().failover || verbs::is_request_at_fault(completion.error)) {
    fail(protocol::LaneFailure::kRequest, q);
  } else {
    fail_queue_pair(q);
  }
  return true;
}

void Lane::take_told() {
  if (observed_ != nullptr) [[unlikely]]
    observed_->note_done(turn_of(told_slot()), find_told()->length_bytes);
  Core::take_told();
  ++count_done_;
}

// --- Failures.

void Lane::stop_pair(uint32_t q, protocol::LaneRecord& record) {
  PairChain& chain = chains_[q];
  chain.drop_pending();
  chain.pair().stop();
  if (!device(q).tells_carried_out()) return;
  const auto packets = chain.pair().read_carried_out();
  record.has_count = packets ? 1 : 0;
  record.packets = packets.value_or(0);
}

bool Lane::is_usable(uint32_t q) const {
  return device(q).may_replace_pairs();
}

bool Lane::renew_pair(uint32_t q, protocol::LaneRecord& record) {
  told_[q] = device(q).refresh_address();
  if (told_[q].port.link_layer == 0) return false;
  auto made = endpoint_.make_pair(options_.rails[q].here, options_.lane, told_[q]);
  if (!made) return false;
  chains_[q].begin(std::move(*made));
  const verbs::QueuePairAddress address = chains_[q].pair().address();
  record.pair = {address.number, address.first_psn, std::bit_cast<protocol::EceRecord>(address.ece)};
  std::memcpy(record.address.bytes, &told_[q].port, sizeof(record.address.bytes));
  return true;
}

// If the peer is this rank itself, `record` is this rank's own record.
bool Lane::connect_pair(uint32_t q, const protocol::LaneRecord& record) {
  verbs::PortAddress port;
  std::memcpy(&port, record.address.bytes, sizeof(port));
  const verbs::QueuePairAddress address{record.pair.number, record.pair.first_psn,
                                        std::bit_cast<verbs::EceOptions>(record.pair.ece),
                                        endpoint_.outstanding_reads_of(peer())};
  endpoint_.list(*this);  // the requests that test it must be posted
  return chains_[q].pair().connect(port, address, rails() > 1).is_ok();
}

void Lane::send_record(const protocol::LaneRecord& record) {
  endpoint_.send_record(peer(), record);
}

void Lane::fail(protocol::LaneFailure failure, uint32_t q) {
  endpoint_.fail_lane(*this, failure, q);
}

void Lane::note_lost(uint32_t q) {
  endpoint_.note_trouble();
  if (causes_[q].empty()) causes_[q] = describe(q) + ": failed at the peer; the peer's log gives the cause";
  if (observed_ != nullptr) observed_->note_rail_down(options_.rails[q].here, q);
}

void Lane::note_settled(uint32_t q, uint32_t repeated) {
  endpoint_.list(*this);  // some operations may now be complete
  if (repeated != 0 && observed_ != nullptr) observed_->note_replay(0, options_.rails[q].here, repeated);
  base::log_warn(
      "endpoint of rank %u: a queue pair to rank %u (lane %u) failed: %s; %u of %u queue pairs are left. The "
      "endpoint repeats %u requests",
      endpoint_.rank(), peer(), number(), causes_[q].c_str(), recovery().count_live(), rails(), repeated);
}

void Lane::note_revived(uint32_t q) {
  if (observed_ != nullptr) observed_->note_rail_up(options_.rails[q].here, q);
  base::log_info("endpoint of rank %u: a queue pair to rank %u (lane %u) works again: %s", endpoint_.rank(),
                 peer(), number(), describe(q).c_str());
  causes_[q].clear();
}

std::string Lane::describe(uint32_t q) const {
  const verbs::Device& on = device(q);
  return "rail " + on.name() + ":" + std::to_string(on.port_number()) + ", qp " +
         std::to_string(chains_[q].pair().number());
}

std::string Lane::describe_causes() const {
  std::string text;
  for (uint32_t q = 0; q < rails(); ++q) {
    if (recovery().is_live(q)) continue;
    if (!text.empty()) text += "; ";
    text += causes_[q];
  }
  return text;
}

int64_t Lane::find_silent_since(uint32_t q, int64_t now_ns) {
  Progress& progress = progress_[q];
  if (under_way(q) == 0 || !recovery().is_live(q) || progress.retired != count_retired(q) ||
      progress.since_ns == 0)
    progress = {count_retired(q), now_ns};
  return progress.since_ns;
}

int64_t Lane::find_unanswered_since(int64_t now_ns) {
  if (!awaits_answers() || answers_.retired != answered() || answers_.since_ns == 0)
    answers_ = {answered(), now_ns};
  return answers_.since_ns;
}

}  // namespace verbena::transport
