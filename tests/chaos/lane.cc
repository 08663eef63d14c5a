#include "chaos/lane.h"

#include "common/clock.h"
#include "common/cpu_unpack.h"
#include "common/pattern.h"

namespace verbena::chaos {
namespace {

constexpr size_t kPageBytes = tools::PageMemory::kPageBytes;
constexpr int64_t kMinGapNs = 1'000'000;

size_t round_up(size_t value, size_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

Places::Places(const MessageList& list, unsigned window)
    : window_(window),
      stride_bytes_(round_up(list.longest_bytes() + MessageList::kMaxOffsetBytes + tools::kGuardLengthBytes,
                             kPageBytes)),
      storage_(window * stride_bytes_) {}

std::span<std::byte> Places::place(const MessageList& list, uint64_t message) {
  return {storage_.data() + message % window_ * stride_bytes_ + list.offset_bytes(message),
          list.length_bytes(message)};
}

std::span<std::byte> Places::guard(const MessageList& list, uint64_t message) {
  const std::span<std::byte> bytes = place(list, message);
  return {bytes.data() + bytes.size(), tools::kGuardLengthBytes};
}

Lane::Lane(tools::NetPlugin& plugin, void* comm, const Traffic& traffic, MessageList list)
    : plugin_(plugin),
      comm_(comm),
      list_(list),
      messages_(traffic.messages),
      window_(traffic.window),
      places_(list, traffic.window),
      mhandle_(plugin.register_memory(comm, places_.data(), places_.length_bytes(), abi::kPtrHost)) {}

void Lane::close() {
  plugin_.deregister_memory(comm_, mhandle_);
  close_comm();
}

bool Outgoing::step() {
  bool has_moved = false;
  if (posted_ != messages_ && posted_ - completed_ != window_) {
    const std::span<std::byte> message = places_.place(list_, posted_);
    if (filled_ == posted_) tools::fill_pattern(message, list_.pattern_index(filled_++));
    void* const request = plugin_.isend(comm_, message.data(), message.size(), mhandle_);
    if (request != nullptr) requests_[posted_++ % requests_.size()] = request;
    has_moved = request != nullptr;
  }
  if (completed_ == posted_) return has_moved;
  const auto length = plugin_.test(requests_[completed_ % requests_.size()]);
  if (!length) return has_moved;
  if (*length != list_.length_bytes(completed_)) throw WrongData("a send's length is another than was sent");
  ++completed_;
  return true;
}

Incoming::Incoming(tools::NetPlugin& plugin, void* comm, UnpackDeviceHandle* unpack, const Traffic& traffic,
                   MessageList list)
    : Lane(plugin, comm, traffic, list), unpack_(unpack), first_head_(unpack != nullptr ? unpack->head : 0) {}

bool Incoming::step() {
  const bool has_posted = post();
  return complete() || has_posted;
}

bool Incoming::post() {
  if (posted_ == messages_ || posted_ - completed_ == window_) return false;
  const std::span<std::byte> message = places_.place(list_, posted_);
  tools::fill_guard(places_.guard(list_, posted_));
  void* const request = plugin_.irecv(comm_, message.data(), message.size(), mhandle_, false);
  if (request == nullptr) return false;
  if (last_ns_ == 0) last_ns_ = tools::now_ns();
  requests_[posted_++ % requests_.size()] = request;
  return true;
}

bool Incoming::complete() {
  if (completed_ == posted_) return false;
  void* const request = requests_[completed_ % requests_.size()];
  const auto length = plugin_.test(request);
  if (!length) return false;
  note_completion();
  const std::span<std::byte> message = places_.place(list_, completed_);
  if (*length != message.size()) {
    throw WrongData("message " + std::to_string(completed_) + " of " + std::to_string(message.size()) +
                    " bytes: test reported " + std::to_string(*length));
  }
  if (unpack_ != nullptr) unpack(message);
  verify(message);
  plugin_.consume(comm_, request);
  ++completed_;
  // NCCL's kernel writes it back.
  if (unpack_ != nullptr) unpack_->head = first_head_ + completed_;
  return true;
}

// What was sent again after a failure lies in its place already, with no descriptor.
void Incoming::unpack(std::span<std::byte> message) {
  const unsigned slot = tools::compute_slot(first_head_, completed_);
  const tools::UnpackedSlot unpacked = tools::unpack_slot(*unpack_, slot, message);
  staged_ += unpacked.descriptor_count != 0 ? 1 : 0;
}

void Incoming::verify(std::span<std::byte> message) {
  const tools::PatternCheck check = tools::check_pattern(message, list_.pattern_index(completed_));
  const uint64_t wrong_guards = tools::count_wrong_guard_bytes(places_.guard(list_, completed_));
  received_bytes_ += message.size();
  if (check.wrong_bytes + wrong_guards == 0) return;
  throw WrongData("message " + std::to_string(completed_) + " of " + std::to_string(message.size()) +
                  " bytes: " + std::to_string(check.wrong_bytes) + " wrong, the first at offset " +
                  std::to_string(check.first_wrong_offset) + "; " + std::to_string(wrong_guards) +
                  " bytes behind it overwritten");
}

void Incoming::note_completion() {
  const int64_t now_ns = tools::now_ns();
  if (now_ns - last_ns_ >= kMinGapNs) gaps_.push_back({last_ns_, now_ns});
  last_ns_ = now_ns;
}

}  // namespace verbena::chaos
