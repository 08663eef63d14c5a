#include "protocol/simulation/simulation.h"

#include <algorithm>

#include "common/cpu_unpack.h"
#include "common/error.h"
#include "common/pattern.h"

namespace verbena::protocol::simulation {

namespace {

// Far more than any fair run needs: beyond it something is stuck.
constexpr uint64_t kMaxSteps = 1'000'000;
constexpr int64_t kStuckNs = 4 * kRecoveryTimes.limit_ns;
constexpr int64_t kIdleNs = 8 * kStepNs;  // passes where there is nothing to do but wait
constexpr uint32_t kChannelPercent = 10;
constexpr size_t kGuardBytes = tools::kGuardLengthBytes;

uint8_t* as_bytes(std::byte* data) {
  return reinterpret_cast<uint8_t*>(data);
}

}  // namespace

Simulation::Simulation(const Shape& shape, uint64_t seed, Scratch& scratch)
    : shape_(shape),
      scratch_(scratch),
      random_(seed ^ 0xA5A5A5A5A5A5A5A5),
      network_(shape, random_),
      sender_(shape, random_, network_, to_sender_, to_receiver_),
      receiver_(shape, random_, network_, to_receiver_, to_sender_, scratch.meta),
      injector_({shape, random_, network_, sender_, receiver_, to_sender_, to_receiver_}),
      end_(shape.first_sequence + static_cast<uint32_t>(shape.messages.size())) {
  size_t send_bytes = 0, receive_bytes = 0;
  for (const MessageShape& message : shape.messages) {
    send_bytes += message.length_bytes;
    receive_bytes += message.room_bytes + 2 * kGuardBytes;
  }
  streams_.resize(shape.tags);
  streamed_.resize(shape.tags);
  for (uint32_t i = 0; i < shape.messages.size(); ++i) streams_[shape.messages[i].tag].push_back(i);
  if (scratch.sends.size() < send_bytes) scratch.sends.resize(send_bytes);
  if (scratch.receives.size() < receive_bytes) scratch.receives.resize(receive_bytes);
  tools::fill_guard({scratch.receives.data(), receive_bytes});
}

Report Simulation::run() {
  while (report_.problem.empty() && !is_settled()) step();
  if (report_.problem.empty()) expect_fair_end();
  clear_slots();
  report_.sender_error = sender_.error();
  report_.receiver_error = receiver_.error();
  report_.staged_messages = sender_.statistics().sent_staged().messages;
  report_.direct_messages = sender_.statistics().sent_direct().messages;
  report_.replays = sender_.statistics().replayed_chunks;
  report_.revivals = sender_.statistics().revived_queue_pairs;
  report_.failures = receiver_.statistics().failed_queue_pairs;
  report_.faults = injector_.injected();
  for (uint32_t id = 0; id < network_.count_lanes(); ++id) {
    const Lane& lane = network_.lane(id);
    report_.packets[lane.queue_pair] += lane.packets.size();
    for (const Packet& packet : lane.packets.requests) report_.plain_writes += packet.has_imm ? 0 : 1;
  }
  return report_;
}

void Simulation::step() {
  if (++report_.steps > kMaxSteps || network_.now_ns() - progress_ns_ > kStuckNs) return fail("stuck");
  network_.pass_time(kStepNs);
  injector_.step();
  if (random_.happens(shape_.network_percent)) {
    step_network();
  } else if (random_.happens(50)) {
    step_sender();
  } else {
    step_receiver();
  }
  for (const std::string* violation : {&network_.violation(), &sender_.violation(), &receiver_.violation()})
    if (!violation->empty()) fail(*violation);
}

void Simulation::step_network() {
  if (random_.happens(kChannelPercent) && !injector_.do_channels_sleep()) {
    to_sender_.deliver();
    to_receiver_.deliver();
  } else if (!network_.advance()) {
    network_.pass_time(kIdleNs);
  }
}

// An end makes no progress while its process sleeps, or while it has open requests that are not tested.
void Simulation::step_sender() {
  has_sender_left_ |= injector_.has_sender_left();
  if (has_sender_left_ || injector_.does_sender_sleep()) return;
  if (!sender_.error().empty() || (shape_.leaves_early && is_sender_done())) {
    sender_.die();
    network_.report_all();
    has_sender_left_ = true;
    return note_progress();
  }
  if (sender_.open_requests() == 0) sender_.serve_if_due();
  if (random_.happens(50)) post_send();
  finish_some_send();
}

// Where messages are staged they leave in the order of the receives; otherwise each tag is a stream of its
// own, and the application sends of whichever it likes.
uint32_t Simulation::choose_send() {
  if (shape_.stages) return sender_.next() - shape_.first_sequence;
  uint32_t stream = random_.between(0, shape_.tags - 1);
  while (streamed_[stream] == streams_[stream].size()) stream = (stream + 1) % shape_.tags;
  return streams_[stream][streamed_[stream]];
}

void Simulation::post_send() {
  if (sender_.next() == end_) return;
  const uint32_t index = choose_send();
  const MessageShape& message = shape_.messages[index];
  const Send send{index, {scratch_.sends.data() + send_bytes_, message.length_bytes}};
  tools::fill_pattern(send.data, index);
  const auto* posted =
      sender_.post(as_bytes(send.data.data()), message.length_bytes, message.may_stage, message.tag);
  if (posted == nullptr) return;
  if (posted->sequence != shape_.first_sequence + index) fail("a send fills another receive");
  if (!shape_.stages) ++streamed_[message.tag];
  send_bytes_ += message.length_bytes;
  sends_.push_back(send);
  note_progress();
}

// A done buffer is the application's again, which overwrites it.
void Simulation::finish_some_send() {
  if (sends_.empty()) return;
  const size_t i = shape_.is_in_order ? 0 : random_.between(0, static_cast<uint32_t>(sends_.size()) - 1);
  if (!sender_.test(shape_.first_sequence + sends_[i].index)) return;
  std::fill(sends_[i].data.begin(), sends_[i].data.end(), std::byte{0xEE});
  sends_.erase(sends_.begin() + static_cast<ptrdiff_t>(i));
  note_progress();
}

void Simulation::step_receiver() {
  has_receiver_left_ |= injector_.has_receiver_left();
  if (has_receiver_left_ || injector_.does_receiver_sleep()) return;
  if (!receiver_.error().empty() || (shape_.leaves_early && is_receiver_done())) {
    receiver_.die();
    has_receiver_left_ = true;
    return note_progress();
  }
  if (receiver_.open_requests() == 0) receiver_.serve_if_due();
  if (receives_.size() < shape_.posts_ahead) post_receive();
  const uint64_t local_work = receiver_.count_local_work();
  touch_some_receive();
  if (receiver_.count_local_work() != local_work) note_progress();  // a copy of many pages takes long
}

void Simulation::post_receive() {
  const uint32_t index = receiver_.next() - shape_.first_sequence;
  if (index == shape_.messages.size()) return;
  Receive receive{index, shape_.messages[index].count};
  size_t bytes = receive_bytes_;
  for (uint32_t part = 0; part < receive.count; ++part) {
    const size_t length = shape_.messages[index + part].room_bytes + 2 * kGuardBytes;
    receive.memory[part] = {scratch_.receives.data() + bytes, length};
    bytes += length;
  }
  if (!post(receive)) return;
  if (shape_.messages[index].has_slot &&
      receiver_.slot(receiver_.next() - 1) != tools::compute_slot(kUnpackFreshHead, kernel_head_++)) {
    fail("a slot that the kernel does not expect");
  }
  receive_bytes_ = bytes;
  receives_.push_back(receive);
  note_progress();
}

bool Simulation::post(Receive& receive) {
  std::array<SimReceiver::Buffer, kMaxGroup> buffers;
  for (uint32_t part = 0; part < receive.count; ++part) {
    const MessageShape& message = shape_.messages[receive.index + part];
    buffers[part] = {as_bytes(receive.memory[part].data()) + kGuardBytes, message.room_bytes,
                     receiver_.memory(message.is_gpu), message.tag};
  }
  if (receive.count > 1) return receiver_.post_group({buffers.data(), receive.count});
  const MessageShape& message = shape_.messages[receive.index];
  return receiver_.post(static_cast<uint8_t*>(buffers[0].data), message.room_bytes, message.receive_class(),
                        message.is_gpu, message.tag);
}

// Reported first, consumed some time later, when the kernel has unpacked it. From then on the memory is the
// application's, which overwrites it.
void Simulation::touch_some_receive() {
  if (receives_.empty()) return;
  const size_t i = shape_.is_in_order ? 0 : random_.between(0, static_cast<uint32_t>(receives_.size()) - 1);
  Receive& receive = receives_[i];
  const uint32_t sequence = shape_.first_sequence + receive.index;
  if (!receive.is_reported) {
    if (!receiver_.test(sequence, receive.bytes.data())) return;
    receive.is_reported = true;
    return note_progress();
  }
  if (!flush(receive)) return;
  for (uint32_t part = 0; part < receive.count; ++part) verify(receive, part);
  receiver_.consume(sequence);
  for (uint32_t part = 0; part < receive.count; ++part) tools::fill_guard(receive.memory[part]);
  received_ += receive.count;
  receives_.erase(receives_.begin() + static_cast<ptrdiff_t>(i));
  note_progress();
}

// NCCL flushes what the NIC has written to a GPU's memory, and waits for that. False: not done yet.
bool Simulation::flush(Receive& receive) {
  uint32_t part = receive.count;
  while (part != 0 && !shape_.messages[receive.index + part - 1].is_gpu) --part;
  if (receive.is_flushed || part == 0) return true;
  if (receive.flush == nullptr) {
    receive.flush = receiver_.flush(as_bytes(receive.memory[part - 1].data()) + kGuardBytes);
    if (receive.flush == nullptr) fail("no flush is taken");
    note_progress();
    return false;
  }
  receive.is_flushed = receiver_.test_flush(*receive.flush);
  return receive.is_flushed;
}

void Simulation::verify(const Receive& receive, uint32_t part) {
  const uint32_t index = receive.index + part;
  const MessageShape& message = shape_.messages[index];
  if (message.is_unpacked && !receiver_.is_pushed(shape_.first_sequence + index))
    fail("a kernel is told of pages that were not pushed");
  if (message.is_gpu && !message.is_unpacked && !receiver_.is_visible(shape_.first_sequence + index))
    fail("flushed memory is not visible");
  const std::span<std::byte> data = receive.memory[part].subspan(kGuardBytes, message.room_bytes);
  const uint32_t slot = receiver_.slot(shape_.first_sequence + index);
  if (message.is_unpacked) {
    try {
      tools::unpack_slot({scratch_.meta, network_.bounce(), kUnpackFreshHead}, slot, data);
    } catch (const tools::ToolError& error) {
      return fail(error.what());
    }
  } else if (message.has_slot && scratch_.meta->cnt[slot] != 0) {
    return fail("something to unpack where the bytes are in place");
  }
  if (receive.bytes[part] != message.length_bytes) return fail("a message of another length");
  if (tools::check_pattern(data.first(message.length_bytes), index).wrong_bytes != 0)
    return fail("wrong bytes in message " + std::to_string(index));
  const std::span<const std::byte> memory(receive.memory[part]);
  if (tools::count_wrong_guard_bytes(memory.first(kGuardBytes)) != 0 ||
      tools::count_wrong_guard_bytes(memory.subspan(kGuardBytes + message.length_bytes)) != 0) {
    fail("bytes beside message " + std::to_string(index));
  }
}

// Each end is done, has reported an error or is gone. If both are done and there, all that was under way has
// arrived, and whatever can live lives again.
bool Simulation::is_settled() {
  const bool is_sender_over = has_sender_left_ || is_sender_done();
  const bool is_receiver_over = has_receiver_left_ || is_receiver_done();
  if (!is_sender_over || !is_receiver_over) return false;
  if (has_sender_left_ || has_receiver_left_ || injector_.may_fail()) return true;
  if (!network_.is_quiet() || !to_sender_.is_quiet() || !to_receiver_.is_quiet()) {
    sender_.wake();  // the next request would find what is left to poll
    receiver_.wake();
    return false;
  }
  for (uint32_t q = 0; q < shape_.queue_pairs; ++q) {
    if (network_.is_dead_for_ever(q % shape_.rails)) continue;
    if (!sender_.recovery().is_live(q) || !receiver_.recovery().is_live(q)) return false;
  }
  return true;
}

// An error only where there is a reason for one.
void Simulation::expect_fair_end() {
  const bool may_fail = injector_.may_fail();
  if (!receiver_.error().empty() && !may_fail) return fail("the receiver's error: " + receiver_.error());
  const bool is_left = shape_.leaves_early && is_receiver_done();
  if (!sender_.error().empty() && !may_fail && !is_left)
    return fail("the sender's error: " + sender_.error());
  if (is_receiver_done()) {
    if (tools::count_wrong_guard_bytes({scratch_.receives.data(), receive_bytes_}) != 0)
      return fail("memory was written after its message was closed");
  }
  if (has_sender_left_ || has_receiver_left_ || may_fail) return;
  expect_rest();
  expect_credits();
}

// All pages are free again, no slot is left published.
void Simulation::expect_rest() {
  if (network_.count_posted_pages() + receiver_.count_spare() != shape_.count_pages()) fail("a page is lost");
  const auto& counts = scratch_.meta->cnt;
  if (std::any_of(std::begin(counts), std::end(counts), [](uint64_t count) { return count != 0; }))
    fail("a slot is still published");
}

void Simulation::expect_credits() {
  for (uint32_t q = 0; q < shape_.queue_pairs; ++q) {
    if (sender_.share().rate(q).outstanding_bytes() != 0)
      return fail("bytes stay outstanding on a queue pair");
    if (!sender_.recovery().is_live(q) || !receiver_.recovery().is_live(q)) continue;
    if (sender_.recovery().generation(q) != receiver_.recovery().generation(q))
      return fail("the ends disagree about a generation");
    if (sender_.count_taken(q) != receiver_.credits().returned(q) + receiver_.held(q))
      return fail("credits are lost");
  }
}

void Simulation::clear_slots() {
  for (uint64_t& count : scratch_.meta->cnt) count = 0;
}

void Simulation::fail(const std::string& problem) {
  if (!report_.problem.empty()) return;
  report_.problem = problem + " (step " + std::to_string(report_.steps) + ")";
  const auto add = [this](const char* what, uint64_t number) {
    report_.problem += std::string(", ") + what + ' ' + std::to_string(number);
  };
  report_.problem += ", '" + sender_.error() + "', '" + receiver_.error() + "'";
  add("sent", sender_.next() - shape_.first_sequence);
  add("open sends", sends_.size());
  add("consumed", received_);
  add("of", shape_.messages.size());
  add("replays pending", sender_.has_any_replays());
  for (uint32_t q = 0; q < shape_.queue_pairs; ++q) {
    add("\n  queue pair", q);
    add("sender's phase", static_cast<uint32_t>(sender_.recovery().phase(q)));
    add("receiver's phase", static_cast<uint32_t>(receiver_.recovery().phase(q)));
    add("generation", sender_.recovery().generation(q));
    add("taken", sender_.count_taken(q));
    add("returned", receiver_.credits().returned(q));
    add("held", receiver_.held(q));
    add("window", shape_.window);
  }
}

}  // namespace verbena::protocol::simulation
