#include "protocol/simulation/simulation.h"

#include <algorithm>

#include "common/cpu_unpack.h"
#include "common/error.h"
#include "common/pattern.h"

namespace verbena::protocol::simulation {

namespace {

constexpr uint64_t kStepsPerMessage =
    100'000;  // far more than any fair run needs: beyond it something is stuck
constexpr size_t kGuardBytes = tools::kGuardLengthBytes;

uint8_t* as_bytes(std::byte* data) {
  return reinterpret_cast<uint8_t*>(data);
}

}  // namespace

Simulation::Simulation(const Shape& shape, uint64_t seed, NetUnpackMeta* meta)
    : shape_(shape),
      random_(seed ^ 0xA5A5A5A5A5A5A5A5),
      network_(shape, random_),
      meta_(meta),
      sender_(shape, network_),
      receiver_(shape, network_, meta) {}

Report Simulation::run() {
  const uint64_t limit = kStepsPerMessage * (shape_.messages.size() + 1);
  while (!is_finished() && report_.problem.empty()) {
    if (++report_.steps > limit) fail("stuck");
    if (random_.happens(shape_.network_percent)) {
      network_.advance();
    } else if (random_.happens(50)) {
      step_sender();
    } else {
      step_receiver();
    }
    for (const std::string* violation : {&network_.violation(), &sender_.violation(), &receiver_.violation()})
      if (!violation->empty()) fail(*violation);
  }
  if (report_.problem.empty()) expect_rest();
  report_.staged_messages = sender_.staged_messages();
  report_.direct_messages = sender_.direct_messages();
  return report_;
}

bool Simulation::is_finished() const {
  return received_ == shape_.messages.size() && sent_.empty() && network_.is_quiet();
}

void Simulation::step_sender() {
  if (random_.happens(50)) post_send();
  sender_.progress();
  finish_some_send();
}

void Simulation::post_send() {
  const uint32_t index = sender_.next() - shape_.first_sequence;
  if (index == shape_.messages.size()) return;
  const MessageShape& message = shape_.messages[index];
  Sent sent{index, std::vector<std::byte>(message.length_bytes)};
  tools::fill_pattern(sent.data, index);
  if (sender_.post(as_bytes(sent.data.data()), message.length_bytes, message.may_stage))
    sent_.push_back(std::move(sent));
}

// In any order. A done buffer is the application's again, which overwrites it.
void Simulation::finish_some_send() {
  if (sent_.empty()) return;
  Sent& sent = sent_[random_.between(0, static_cast<uint32_t>(sent_.size()) - 1)];
  if (!sender_.is_done(shape_.first_sequence + sent.index)) return;
  std::fill(sent.data.begin(), sent.data.end(), std::byte{0xEE});
  std::swap(sent, sent_.back());
  sent_.pop_back();
}

void Simulation::step_receiver() {
  if (posted_.size() < shape_.posts_ahead) post_receive();
  receiver_.progress();
  touch_some_receive();
}

void Simulation::post_receive() {
  const uint32_t index = receiver_.next() - shape_.first_sequence;
  if (index == shape_.messages.size()) return;
  const MessageShape& message = shape_.messages[index];
  Posted posted{index, false, std::vector<std::byte>(message.room_bytes + 2 * kGuardBytes)};
  tools::fill_guard(posted.memory);
  const bool taken = receiver_.post(as_bytes(posted.memory.data()) + kGuardBytes, message.room_bytes,
                                    message.has_slot, message.is_unpacked);
  if (!taken) return;
  if (message.has_slot &&
      receiver_.slot(receiver_.next() - 1) != tools::compute_slot(kUnpackFreshHead, kernel_head_++)) {
    fail("a slot that the kernel does not expect");
  }
  posted_.push_back(std::move(posted));
}

// In any order: reported first, consumed some time later.
void Simulation::touch_some_receive() {
  if (posted_.empty()) return;
  Posted& posted = posted_[random_.between(0, static_cast<uint32_t>(posted_.size()) - 1)];
  const uint32_t sequence = shape_.first_sequence + posted.index;
  uint64_t bytes = 0;
  if (!posted.is_reported) {
    if (!receiver_.test(sequence, &bytes)) return;
    posted.is_reported = true;
    verify(posted, bytes);
    return;
  }
  receiver_.consume(sequence);
  ++received_;
  std::swap(posted, posted_.back());
  posted_.pop_back();
}

void Simulation::verify(Posted& posted, uint64_t bytes) {
  const MessageShape& message = shape_.messages[posted.index];
  const std::span<std::byte> data(posted.memory.data() + kGuardBytes, message.room_bytes);
  const uint32_t slot = receiver_.slot(shape_.first_sequence + posted.index);
  if (message.is_unpacked) {
    try {
      tools::unpack_slot({meta_, network_.bounce(), kUnpackFreshHead}, slot, data);
    } catch (const tools::ToolError& error) {
      return fail(error.what());
    }
  } else if (message.has_slot && meta_->cnt[slot] != 0) {
    return fail("something to unpack where the bytes are in place");
  }
  if (bytes != message.length_bytes) return fail("a message of another length");
  if (tools::check_pattern(data.first(message.length_bytes), posted.index).wrong_bytes != 0)
    return fail("wrong bytes in message " + std::to_string(posted.index));
  const std::span<const std::byte> memory(posted.memory);
  if (tools::count_wrong_guard_bytes(memory.first(kGuardBytes)) != 0 ||
      tools::count_wrong_guard_bytes(memory.subspan(kGuardBytes + message.length_bytes)) != 0) {
    fail("bytes beside message " + std::to_string(posted.index));
  }
}

// All pages are posted again, no slot is left published.
void Simulation::expect_rest() {
  receiver_.progress();
  if (network_.count_posted_pages() != shape_.count_pages()) fail("a page is lost");
  if (std::any_of(std::begin(meta_->cnt), std::end(meta_->cnt), [](uint64_t count) { return count != 0; }))
    fail("a slot is still published");
}

void Simulation::fail(const std::string& problem) {
  if (report_.problem.empty()) report_.problem = problem + " (step " + std::to_string(report_.steps) + ")";
}

}  // namespace verbena::protocol::simulation
