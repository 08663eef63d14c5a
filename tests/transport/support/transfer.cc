#include "transport/support/transfer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "common/cpu_unpack.h"
#include "common/error.h"
#include "common/pattern.h"

namespace verbena::transport {

namespace {

constexpr size_t kGuardBytes = tools::kGuardLengthBytes;
constexpr size_t kLineBytes = 64;

std::vector<uint32_t> list_places(uint32_t count) {
  std::vector<uint32_t> places(count);
  std::iota(places.begin(), places.end(), 0);
  return places;
}

}  // namespace

size_t Transfer::slot_bytes() const {
  size_t longest = 0;
  for (const auto& message : messages) {
    const uint32_t shift = std::max(message.source_shift, message.target_shift);
    longest = std::max(longest, message.length_bytes + message.extra_room_bytes + shift);
  }
  return (longest + 2 * kGuardBytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

SendingSide::SendingSide(Sender& sender, const Nic& nic, const Transfer& transfer)
    : sender_(sender),
      transfer_(transfer),
      memory_(nic, transfer.slot_bytes() * transfer.sends_ahead),
      random_(transfer.seed),
      free_places_(list_places(transfer.sends_ahead)) {}

bool SendingSide::step() {
  if (status_ == base::Status::kOk && next_ < transfer_.messages.size() && !free_places_.empty()) post_next();
  while (status_ == base::Status::kOk && test_some()) continue;
  return status_ != base::Status::kOk || finished_ == transfer_.messages.size();
}

void SendingSide::post_next() {
  const TransferMessage& message = transfer_.messages[next_];
  const uint32_t place = free_places_.back();
  const auto data =
      memory_.bytes().subspan(place * transfer_.slot_bytes() + message.source_shift, message.length_bytes);
  tools::fill_pattern(data, next_);
  Request* request = nullptr;
  const auto outcome =
      sender_.post(data.data(), data.size(), memory_.registration(), message.may_stage, &request);
  status_ = outcome.status();
  if (request == nullptr) return;
  free_places_.pop_back();
  open_.push_back({static_cast<SendMessage*>(request), place});
  ++next_;
}

// In any order. The buffer of a send that is done is overwritten.
bool SendingSide::test_some() {
  if (open_.empty()) return false;
  Open& open = open_[random_.between(0, static_cast<uint32_t>(open_.size()) - 1)];
  bool is_done = false;
  status_ = sender_.test(*open.message, &is_done).status();
  if (!is_done) return false;
  const auto place = memory_.bytes().subspan(open.place * transfer_.slot_bytes(), transfer_.slot_bytes());
  std::fill_n(place.begin(), std::min<size_t>(place.size(), 4096), std::byte{0xEE});
  free_places_.push_back(open.place);
  std::swap(open, open_.back());
  open_.pop_back();
  ++finished_;
  return true;
}

ReceivingSide::ReceivingSide(AcceptedEnd& end, const Nic& nic, const Transfer& transfer)
    : end_(end),
      transfer_(transfer),
      memory_(nic, transfer.slot_bytes() * transfer.receives_ahead),
      random_(transfer.seed + 1),
      free_places_(list_places(transfer.receives_ahead)) {}

bool ReceivingSide::step() {
  const bool may_go_on = status_ == base::Status::kOk && problem_.empty();
  if (may_go_on && next_ < transfer_.messages.size() && !free_places_.empty()) post_next();
  while (status_ == base::Status::kOk && problem_.empty() && test_some()) continue;
  return status_ != base::Status::kOk || !problem_.empty() || finished_ == transfer_.messages.size();
}

std::span<std::byte> ReceivingSide::whole_place(uint32_t place) {
  return memory_.bytes().subspan(place * transfer_.slot_bytes(), transfer_.slot_bytes());
}

void ReceivingSide::post_next() {
  const TransferMessage& message = transfer_.messages[next_];
  const uint32_t place = free_places_.back();
  tools::fill_guard(whole_place(place));
  std::byte* data = whole_place(place).data() + kGuardBytes + message.target_shift;
  Request* request = nullptr;
  const auto outcome = end_.receiver->post(data, message.length_bytes + message.extra_room_bytes,
                                           memory_.registration(), message.receive_class, &request);
  status_ = outcome.status();
  if (request == nullptr) return;
  free_places_.pop_back();
  uint32_t slot = 0;
  if (end_.handle != nullptr && message.receive_class != ReceiveClass::kNoSlot)
    slot = tools::compute_slot(kUnpackFreshHead, end_.slots_used++);
  open_.push_back({static_cast<ReceiveMessage*>(request), next_, place, slot, false});
  ++next_;
}

// In any order: first reported, some calls later consumed.
bool ReceivingSide::test_some() {
  if (open_.empty()) return false;
  Open& open = open_[random_.between(0, static_cast<uint32_t>(open_.size()) - 1)];
  if (!open.is_reported) {
    uint64_t bytes = 0;
    status_ = end_.receiver->test(*open.message, &open.is_reported, &bytes).status();
    if (open.is_reported) look_at(open, bytes);
    return open.is_reported;
  }
  status_ = end_.receiver->consume(*open.message).status();
  free_places_.push_back(open.place);
  std::swap(open, open_.back());
  open_.pop_back();
  ++finished_;
  return true;
}

void ReceivingSide::look_at(const Open& open, uint64_t bytes) {
  const TransferMessage& message = transfer_.messages[open.index];
  const auto place = whole_place(open.place);
  const auto room =
      place.subspan(kGuardBytes + message.target_shift, message.length_bytes + message.extra_room_bytes);
  const std::string name =
      "message " + std::to_string(open.index) + " of " + std::to_string(message.length_bytes) + " bytes: ";
  if (end_.handle != nullptr && message.receive_class == ReceiveClass::kUnpacked) {
    try {
      tools::unpack_slot(*end_.handle, open.slot, room);
    } catch (const tools::ToolError& error) {
      problem_ = name + error.what();
      return;
    }
  } else if (end_.handle != nullptr && message.receive_class == ReceiveClass::kSlotOnly &&
             tools::load_slot_count(*end_.handle, open.slot) != 0) {
    problem_ = name + "its slot must be empty";
  }
  if (bytes != message.length_bytes) problem_ = name + "reported as " + std::to_string(bytes);
  const auto check = tools::check_pattern(room.first(message.length_bytes), open.index);
  if (check.wrong_bytes != 0) {
    problem_ = name + std::to_string(check.wrong_bytes) + " wrong bytes from " +
               std::to_string(check.first_wrong_offset) + " on";
  }
  const size_t end = kGuardBytes + message.target_shift + message.length_bytes;
  if (tools::count_wrong_guard_bytes(place.first(kGuardBytes + message.target_shift)) != 0 ||
      tools::count_wrong_guard_bytes(place.subspan(end)) != 0) {
    problem_ = name + "bytes beside it";
  }
}

bool step_both(SendingSide& sender, ReceivingSide& receiver) {
  const bool is_sent = sender.step(), is_received = receiver.step();
  return is_sent && is_received;
}

void expect_transfer_here(ConnectedPair& connection, const Nic& sending, const Nic& receiving,
                          const Transfer& transfer) {
  SendingSide sender(*connection.sender, sending, transfer);
  ReceivingSide receiver(connection.receiving, receiving, transfer);
  const bool ok = poll_until([&] {
    return step_both(sender, receiver) || sender.status() != base::Status::kOk ||
           receiver.status() != base::Status::kOk || !receiver.problem().empty();
  });
  EXPECT_TRUE(ok) << "stuck: " << sender.finished() << " sent, " << receiver.finished() << " received";
  EXPECT_EQ(sender.status(), base::Status::kOk);
  EXPECT_EQ(receiver.status(), base::Status::kOk);
  EXPECT_EQ(receiver.problem(), "");
}

}  // namespace verbena::transport
