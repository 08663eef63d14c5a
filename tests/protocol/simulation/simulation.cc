#include "protocol/simulation/simulation.h"

#include <algorithm>

#include "common/cpu_unpack.h"
#include "common/error.h"
#include "common/pattern.h"

namespace verbena::protocol::simulation {

namespace {

// Far more than any fair run needs: beyond it something is stuck.
constexpr uint64_t kMostSteps = 1'000'000;
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
      sender_(shape, network_, to_sender_, to_receiver_),
      receiver_(shape, network_, to_receiver_, to_sender_, scratch.meta),
      injector_({shape, random_, network_, sender_, receiver_, to_sender_, to_receiver_}),
      end_(shape.first_sequence + static_cast<uint32_t>(shape.messages.size())) {
  size_t send_bytes = 0, receive_bytes = 0;
  for (const MessageShape& message : shape.messages) {
    send_bytes += message.length_bytes;
    receive_bytes += message.room_bytes + 2 * kGuardBytes;
  }
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
  report_.staged_messages = sender_.staged_messages();
  report_.direct_messages = sender_.direct_messages();
  report_.replays = sender_.replays();
  report_.revivals = sender_.revivals();
  report_.failures = receiver_.failures();
  report_.faults = injector_.injected();
  return report_;
}

void Simulation::step() {
  if (++report_.steps > kMostSteps || network_.now_ns() - progress_ns_ > kStuckNs) return fail("stuck");
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

// Nobody attends to an end whose process sleeps, or while requests are open that nobody tests.
void Simulation::step_sender() {
  has_sender_left_ |= injector_.has_sender_left();
  if (has_sender_left_ || injector_.does_sender_sleep()) return;
  if (!sender_.error().empty() || (shape_.leaves_early && is_sender_done())) {
    sender_.leave();
    network_.report_all();
    has_sender_left_ = true;
    return note_progress();
  }
  if (!sender_.is_open()) sender_.attend();
  if (random_.happens(50)) post_send();
  finish_some_send();
}

void Simulation::post_send() {
  const uint32_t index = sender_.next() - shape_.first_sequence;
  if (index == shape_.messages.size()) return;
  const MessageShape& message = shape_.messages[index];
  const Send send{index, {scratch_.sends.data() + send_bytes_, message.length_bytes}};
  tools::fill_pattern(send.data, index);
  if (!sender_.post(as_bytes(send.data.data()), message.length_bytes, message.may_stage)) return;
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
    receiver_.leave();
    has_receiver_left_ = true;
    return note_progress();
  }
  if (!receiver_.is_open()) receiver_.attend();
  if (receives_.size() < shape_.posts_ahead) post_receive();
  touch_some_receive();
}

void Simulation::post_receive() {
  const uint32_t index = receiver_.next() - shape_.first_sequence;
  if (index == shape_.messages.size()) return;
  const MessageShape& message = shape_.messages[index];
  Receive receive{
      index, false, {scratch_.receives.data() + receive_bytes_, message.room_bytes + 2 * kGuardBytes}};
  const bool taken = receiver_.post(as_bytes(receive.memory.data()) + kGuardBytes, message.room_bytes,
                                    message.has_slot, message.is_unpacked);
  if (!taken) return;
  if (message.has_slot &&
      receiver_.slot(receiver_.next() - 1) != tools::compute_slot(kUnpackFreshHead, kernel_head_++)) {
    fail("a slot that the kernel does not expect");
  }
  receive_bytes_ += receive.memory.size();
  receives_.push_back(receive);
  note_progress();
}

// Reported first, consumed some time later, when the kernel has unpacked it. From then on the memory is the
// application's, which overwrites it.
void Simulation::touch_some_receive() {
  if (receives_.empty()) return;
  const size_t i = shape_.is_in_order ? 0 : random_.between(0, static_cast<uint32_t>(receives_.size()) - 1);
  Receive& receive = receives_[i];
  const uint32_t sequence = shape_.first_sequence + receive.index;
  if (!receive.is_reported) {
    if (!receiver_.test(sequence, &receive.bytes)) return;
    receive.is_reported = true;
    return note_progress();
  }
  verify(receive);
  receiver_.consume(sequence);
  tools::fill_guard(receive.memory);
  ++received_;
  receives_.erase(receives_.begin() + static_cast<ptrdiff_t>(i));
  note_progress();
}

void Simulation::verify(Receive& receive) {
  const MessageShape& message = shape_.messages[receive.index];
  const std::span<std::byte> data = receive.memory.subspan(kGuardBytes, message.room_bytes);
  const uint32_t slot = receiver_.slot(shape_.first_sequence + receive.index);
  if (message.is_unpacked) {
    try {
      tools::unpack_slot({scratch_.meta, network_.bounce(), kUnpackFreshHead}, slot, data);
    } catch (const tools::ToolError& error) {
      return fail(error.what());
    }
  } else if (message.has_slot && scratch_.meta->cnt[slot] != 0) {
    return fail("something to unpack where the bytes are in place");
  }
  if (receive.bytes != message.length_bytes) return fail("a message of another length");
  if (tools::check_pattern(data.first(message.length_bytes), receive.index).wrong_bytes != 0)
    return fail("wrong bytes in message " + std::to_string(receive.index));
  const std::span<const std::byte> memory(receive.memory);
  if (tools::count_wrong_guard_bytes(memory.first(kGuardBytes)) != 0 ||
      tools::count_wrong_guard_bytes(memory.subspan(kGuardBytes + message.length_bytes)) != 0) {
    fail("bytes beside message " + std::to_string(receive.index));
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
    if (sender_.outstanding_bytes(q) != 0) return fail("bytes stay outstanding on a queue pair");
    if (!sender_.recovery().is_live(q) || !receiver_.recovery().is_live(q)) continue;
    if (sender_.recovery().generation(q) != receiver_.recovery().generation(q))
      return fail("the ends disagree about a generation");
    if (sender_.count_taken(q) != receiver_.count_returned(q) + receiver_.count_held(q))
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
  add("replays pending", sender_.has_replays());
  for (uint32_t q = 0; q < shape_.queue_pairs; ++q) {
    add("\n  queue pair", q);
    add("sender's phase", static_cast<uint32_t>(sender_.recovery().phase(q)));
    add("receiver's phase", static_cast<uint32_t>(receiver_.recovery().phase(q)));
    add("generation", sender_.recovery().generation(q));
    add("taken", sender_.count_taken(q));
    add("returned", receiver_.count_returned(q));
    add("held", receiver_.count_held(q));
    add("window", shape_.window);
  }
}

}  // namespace verbena::protocol::simulation
