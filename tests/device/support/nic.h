// What the plugin does for a kernel that unpacks, as a host function of an emulated world: fills pages,
// publishes messages, and uses slots and pages again when the kernel has told that it is done with them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/emulator/world.h"
#include "device/support/guarded_buffer.h"
#include "device/support/message.h"
#include "protocol/unpack_queue.h"

namespace verbena::device_test {

// One receive connection: its queue, pages and destinations.
class Connection {
 public:
  // A kernel that runs ahead finds a slot still full with 16 or more in flight.
  static constexpr uint32_t kWindow = 15;

  Connection(const MessageShape& shape, uint32_t messages, uint64_t seed) : seed_(seed) {
    for (uint32_t i = 0; i < messages; ++i) {
      messages_.push_back(make_message(shape, seed + i));
      data_bytes_ = std::max(data_bytes_, messages_.back().bounce_bytes);
      destinations_.push_back(
          std::make_unique<GuardedBuffer>(messages_.back().length_bytes, (seed + i) % 16));
    }
    expected_.resize(messages);
    bounce_ = std::make_unique<Bounce>(size_t{data_bytes_} * kWindow);
    handle_ = {meta_.get(), bounce_->data(), kUnpackFreshHead};
  }

  UnpackDeviceHandle* handle() { return &handle_; }
  const UnpackDeviceHandle& handle() const { return handle_; }
  uint8_t* destination(uint32_t message) { return destinations_[message]->data(); }
  size_t length_bytes(uint32_t message) const { return destinations_[message]->length_bytes(); }
  // The kernel stores here how many messages it is done with.
  uint64_t* consumed() { return &consumed_; }

  // Publishes a message or takes one back; false once all are consumed.
  bool work(Random& random) {
    const uint64_t consumed = std::atomic_ref<uint64_t>(consumed_).load(std::memory_order_acquire);
    for (; cleared_ < consumed; ++cleared_)
      queue_.clear(static_cast<uint32_t>(cleared_ % kUnpackQueueDepthSlots));
    if (published_ < messages_.size() && published_ - cleared_ < kWindow && random.between(0, 3) != 0)
      publish();
    return cleared_ < messages_.size();
  }

  // "" or what is wrong; `is_cut_short`: only messages that were consumed are there.
  std::string check(bool is_cut_short) const {
    const uint64_t whole = is_cut_short ? consumed_ : messages_.size();
    for (size_t i = 0; i < whole; ++i) {
      const std::string wrong = destinations_[i]->compare(expected_[i]);
      if (!wrong.empty()) return "message " + std::to_string(i) + ": " + wrong;
    }
    if (!is_cut_short && handle_.head != kUnpackFreshHead + messages_.size()) return "head was not saved";
    return {};
  }

 private:
  void publish() {
    const uint64_t number = published_++;
    const uint32_t first_byte = static_cast<uint32_t>(number % kWindow) * data_bytes_;
    Message message = messages_[number];
    bounce_->refill(first_byte, message.bounce_bytes, seed_ + number);
    const uint32_t slot = queue_.take_slot();
    for (LoadMeta& piece : message.pieces) {
      piece.src_off += first_byte;
      if (!queue_.append(slot, piece.src_off, piece.dst_off, piece.len, ~0u)) emulator::fail("slot is full");
    }
    expected_[number] = bounce_->place(message, kUntouched);
    emulator::yield();
    queue_.publish(slot);
  }

  const uint64_t seed_;
  uint32_t data_bytes_ = 0;
  std::vector<Message> messages_;
  std::vector<std::unique_ptr<GuardedBuffer>> destinations_;
  std::vector<std::vector<uint8_t>> expected_;
  std::unique_ptr<NetUnpackMeta> meta_ = std::make_unique<NetUnpackMeta>();
  protocol::UnpackQueue queue_{meta_.get()};
  std::unique_ptr<Bounce> bounce_;
  UnpackDeviceHandle handle_;
  uint64_t published_ = 0, cleared_ = 0;
  alignas(64) uint64_t consumed_ = 0;
};

}  // namespace verbena::device_test
