// The receiving end, made of the protocol's parts as plugin/transport/receiver.cc is, over the simulated
// network.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "protocol/arrivals.h"
#include "protocol/credits.h"
#include "protocol/recovery.h"
#include "protocol/simulation/control_channel.h"
#include "protocol/simulation/network.h"
#include "protocol/unpack_queue.h"

namespace verbena::protocol::simulation {

class ModelReceiver {
 public:
  ModelReceiver(const Shape& shape, Network& network, ControlChannel& from_peer, ControlChannel& to_peer,
                NetUnpackMeta* meta);

  // False: no room now.
  bool post(uint8_t* data, uint32_t room_bytes, bool has_slot, bool is_unpacked);
  // Done; for an unpacked message its slot is published.
  bool test(uint32_t sequence, uint64_t* bytes);
  void consume(uint32_t sequence);
  void progress();
  // What the service does while no request is open.
  void attend();
  void wake() { attend_at_ns_ = network_.now_ns(); }
  void leave();

  bool is_open() const { return open_ != 0; }
  uint32_t next() const { return next_; }
  // The slot that the kernel must unpack for this message.
  uint32_t slot(uint32_t sequence) const { return ring_[sequence % kMessageRing].slot; }
  // Why the connection failed, as the application is told; empty while it has not.
  const std::string& error() const { return error_; }
  // What must never happen.
  const std::string& violation() const { return violation_; }
  uint64_t failures() const { return failures_; }
  const ReceiverRecovery& recovery() const { return recovery_; }
  uint32_t lane(uint32_t queue_pair) const { return lanes_[queue_pair]; }
  uint32_t count_returned(uint32_t queue_pair) const { return credits_.returned(queue_pair); }
  uint32_t count_held(uint32_t queue_pair) const { return held_[queue_pair]; }
  uint32_t count_spare() const;
  // It tells what it has not told yet.
  void finish();

  // The next new queue pair cannot be made.
  bool refuses = false;

 private:
  struct Message {
    bool is_posted = false, is_ready = false, has_slot = false, is_unpacked = false;
    uint32_t sequence = 0, slot = 0, room_bytes = 0;
    uint8_t* data = nullptr;
    Arrivals arrivals;
    std::vector<Received> pages;
  };
  struct Host;
  friend struct Host;

  void absorb_completions();
  void absorb(const Received& received);
  void take_back(const Received& received);
  void give_back(const Received& received);
  void post_spare(uint32_t queue_pair);
  bool may_write() const { return broken_.empty() && recovery_.is_any_live(); }
  void send_grants();
  void send_credits();
  void write_control(uint32_t queue_pair, const void* line, size_t offset_bytes);
  bool place(Message& message);
  uint32_t free_slots(uint32_t queue_pair) const {
    return kControlDepth - control_writes_[queue_pair].under_way;
  }

  void recover();
  bool is_recovering() const { return is_before(consumed_, recovering_until_); }
  void hurry_entries();
  void absorb_records(Host& host);
  void give_up(uint32_t queue_pair);
  void update_rails();
  void describe_arrived(ArrivedRecord& record) const;
  void check_wait(const Message& message);
  void fail(const std::string& error) {
    if (error_.empty()) error_ = error;
  }

  static constexpr uint32_t kControlDepth = 16, kSignalEvery = kControlDepth / 4;

  const Shape& shape_;
  Network& network_;
  ControlChannel& from_peer_;
  ControlChannel& to_peer_;
  UnpackQueue queue_;
  ReceiverCredits credits_;
  std::array<Message, kMessageRing> ring_;
  std::array<uint32_t, kMaxQueuePairs> lanes_{};
  struct ControlWrites {
    uint32_t posted = 0, under_way = 0;
  };
  std::array<ControlWrites, kMaxQueuePairs> control_writes_;
  std::array<uint32_t, kMaxQueuePairs> held_{};               // entries taken and not posted again
  std::array<std::vector<uint32_t>, kMaxQueuePairs> spares_;  // free, not posted yet
  uint32_t next_, next_grant_, consumed_, recovering_until_;
  uint32_t first_home_, home_, credit_pair_ = 0;
  bool must_send_credits_ = false;
  uint32_t open_ = 0;
  ReceiverRecovery recovery_;
  uint32_t idle_tests_ = 0;
  int64_t waits_since_ns_ = 0, attend_at_ns_ = kNever, closed_since_ns_ = 0;
  uint64_t failures_ = 0;
  std::string broken_;  // why nothing more can arrive; what has arrived is still delivered
  std::string error_, violation_;
};

}  // namespace verbena::protocol::simulation
