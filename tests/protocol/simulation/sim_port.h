// The two ends of a connection as the plugin has them (protocol/send_core.h, receive_core.h), over the
// simulated network: what transport/sender.h and receiver.h do with verbs, done with what a seed decides.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <span>
#include <string>

#include "protocol/receive_core.h"
#include "protocol/send_core.h"
#include "protocol/simulation/control_channel.h"
#include "protocol/simulation/network.h"

namespace verbena::protocol::simulation {

struct SimTypes {
  struct Request {};
  struct Memory {
    bool is_gpu = false;
  };
};

// What both ends' ports have.
class SimEnd {
 public:
  // The error that the application gets; empty while there is none.
  const std::string& error() const { return error_; }
  // What must never happen.
  const std::string& violation() const { return violation_; }
  uint32_t lane(uint32_t queue_pair) const { return lanes_[queue_pair]; }
  void wake() { serve_at_ns_ = network_.now_ns(); }

 protected:
  SimEnd(const Shape& shape, Random& random, Network& network, ControlChannel& from_peer,
         ControlChannel& to_peer);

  int64_t now_ns() const { return network_.now_ns(); }
  int64_t patience_ns() const { return 2 * kRecoveryTimes.limit_ns; }
  // Sometimes the service thread is at work on it.
  bool enter() { return !random_.happens(shape_.busy_percent); }
  void leave() {}
  bool is_wanted() const { return is_wanted_ || from_peer_.is_wanted(); }
  void want() { is_wanted_ = true; }
  bool take_news();
  bool has_failed() const { return !error_.empty(); }
  bool is_peer_closed() const { return from_peer_.is_closed(); }
  bool is_grace_over();
  bool fail(Failure fault, uint32_t number, uint32_t queue_pair = 0);
  void send_record(const RecoveryRecord& record, const ArrivedRecord* arrived) {
    to_peer_.send(record, arrived);
  }
  const RecoveryRecord* receive_record(const ArrivedRecord** arrived);
  void push_records() {}
  bool has_unsent() const { return false; }
  bool is_usable(uint32_t queue_pair) const { return network_.is_up(queue_pair % shape_.rails); }
  // A request takes a slot of its queue until one that is signaled, it or a later one, is seen to be done.
  uint32_t free_slots(uint32_t queue_pair) const {
    const Slots& slots = slots_[queue_pair];
    return lanes_[queue_pair] == kNoLane ? 0 : depth_ - (slots.posted - slots.retired);
  }
  void retire_pair(uint32_t queue_pair) {
    lanes_[queue_pair] = kNoLane;
    slots_[queue_pair] = {};
  }
  // Of the queue pairs that carry something those whose rail is known to be down, while another is up.
  template <typename GiveUp>
  void find_dying(const QueuePairStates& lives, GiveUp&& give_up) {
    bool is_other_up = false;
    for (uint32_t q = 0; q < shape_.queue_pairs; ++q) is_other_up |= lives.is_live(q) && is_usable(q);
    for (uint32_t q = 0; q < shape_.queue_pairs; ++q)
      if (lives.is_live(q) && !is_usable(q) && is_other_up) give_up(q);
  }
  // Output for people.
  void note_lost(uint32_t) {}
  void note_lost_at_peer(uint32_t) {}
  void note_loss(uint32_t) {}
  void note_revived(uint32_t) {}
  void warn_of_stall() {}
  void note_post_end() {}
  void note_chunk(uint32_t, bool, uint32_t, uint64_t) {}
  void note_done(uint32_t, uint64_t) {}

  struct Slots {
    uint32_t posted = 0, retired = 0;
  };

  const Shape& shape_;
  Random& random_;
  Network& network_;
  ControlChannel& from_peer_;
  ControlChannel& to_peer_;
  uint32_t depth_ = 0;
  std::array<uint32_t, kMaxQueuePairs> lanes_{};
  std::array<Slots, kMaxQueuePairs> slots_;
  int64_t serve_at_ns_ = kNever;
  std::string error_, violation_;

 private:
  bool is_wanted_ = false;
  int64_t closed_since_ns_ = 0;
  std::optional<ControlChannel::Message> message_;
};

class SimSender final : public SendCore<SimSender, SimTypes>, public SimEnd {
 public:
  using Core = SendCore<SimSender, SimTypes>;

  SimSender(const Shape& shape, Random& random, Network& network, ControlChannel& from_peer,
            ControlChannel& to_peer);

  const Message* post(const uint8_t* data, uint32_t length_bytes, bool may_stage, int32_t tag) {
    return Core::post(data, length_bytes, &memory_, may_stage, tag);
  }
  bool test(uint32_t sequence) { return Core::test(ring_[sequence % kMessageRing]); }
  // What the service does while no request is open.
  void serve_if_due();
  // Its process is gone, or it has given up.
  void die();
  uint32_t count_taken(uint32_t queue_pair) const {
    return credits().window(queue_pair) - credits().available(queue_pair) + credits().returned(queue_pair);
  }

  // The next of these fails.
  bool fails_offer = false, fails_connect = false;

 private:
  friend Core;
  friend ConnectionCore<SimSender, SenderRecovery>;
  using WorkRequest = Packet;

  ControlView control() { return ControlView(&network_.control()); }
  bool poll_completions();
  Packet make_work(uint32_t queue_pair, const SimTypes::Memory* memory, const SendWork& work);
  bool post_work(uint32_t queue_pair, const Packet& packet);
  bool post_work(uint32_t queue_pair, std::span<const Packet> packets);
  bool post_trial(uint32_t queue_pair, uint64_t cookie);
  void stop_pair(uint32_t queue_pair) { network_.fail_sender(lanes_[queue_pair]); }
  bool renew_pair(uint32_t queue_pair, RecoveryRecord& record);
  bool connect_pair(uint32_t queue_pair, const RecoveryRecord& answer);
  void give_up_dying_pairs(int64_t) {
    find_dying(recovery(), [&](uint32_t q) { fail_queue_pair(q, false, consumed()); });
  }
  void give_up_silent_pair(uint32_t) { violation_ = "the sender's device is silent"; }
  Replay* make_replay();
  void note_post(uint32_t, uint64_t) {}
  void note_replay(uint32_t, uint32_t, uint64_t) {}

  SimTypes::Memory memory_;
  std::unique_ptr<Replay> replays_;
  uint64_t replays_seen_ = 0;
};

class SimReceiver final : public ReceiveCore<SimReceiver, SimTypes>, public SimEnd {
 public:
  using Core = ReceiveCore<SimReceiver, SimTypes>;

  SimReceiver(const Shape& shape, Random& random, Network& network, ControlChannel& from_peer,
              ControlChannel& to_peer, NetUnpackMeta* meta);

  bool post(uint8_t* data, uint32_t room_bytes, ReceiveClass receive_class, bool is_gpu, int32_t tag) {
    return Core::post(data, room_bytes, &memories_[is_gpu], receive_class, tag) != nullptr;
  }
  bool post_group(std::span<const Buffer> buffers) { return Core::post_group(buffers) != nullptr; }
  const SimTypes::Memory* memory(bool is_gpu) const { return &memories_[is_gpu]; }
  bool test(uint32_t sequence, uint64_t* bytes) { return Core::test(ring_[sequence % kMessageRing], bytes); }
  void consume(uint32_t sequence) { Core::consume(ring_[sequence % kMessageRing]); }
  Flush* flush(const uint8_t* data) { return Core::flush(data, &memories_[1]); }
  void serve_if_due();
  void die();
  uint32_t slot(uint32_t sequence) const { return ring()[sequence % kMessageRing].slot; }
  uint32_t count_spare() const;
  // Its rails have pushed what the pages of an unpacked message hold.
  bool is_pushed(uint32_t sequence) const;
  // Its rails have pushed what they wrote to the memory of this message, which the caller flushed.
  bool is_visible(uint32_t sequence) const;

  uint64_t count_local_work() const { return local_done_; }  // copies and pushes that are done

  // The next new queue pair cannot be made.
  bool refuses = false;

 private:
  friend Core;
  friend ConnectionCore<SimReceiver, ReceiverRecovery>;

  // Local work of the device: a copy out of a page, or a read that pushes what was written to it.
  struct LocalWork {
    uint32_t rail = 0, page = kNoPage, length_bytes = 0;
    uint8_t* target = nullptr;  // null: a push
    uint32_t* outstanding = nullptr;
    uint64_t writes = 0;  // of the rail, that a push comes after
  };

  bool poll_completions();
  void write_control(uint32_t queue_pair, const void* line, uint64_t offset_bytes, bool is_signaled);
  const uint32_t* remote_keys(const SimTypes::Memory*) const { return keys_.data(); }
  bool repost(uint32_t queue_pair, std::span<const uint32_t> pages);
  PageInfo& page_info(uint32_t page) { return pages_[page]; }
  uint32_t page_offset(uint32_t page) const { return page * shape_.page_bytes; }
  CopyResult copy_page(uint32_t page, uint8_t* target, const SimTypes::Memory* memory, uint32_t bytes,
                       uint32_t* outstanding);
  bool has_room_to_flush(uint32_t) const { return local_.size() < shape_.local_depth; }
  void flush_page(uint32_t rail, uint32_t page, uint32_t* outstanding);
  void flush_data(uint32_t rail, const void*, const SimTypes::Memory*, uint32_t* outstanding);
  void stop_pair(uint32_t queue_pair) { network_.fail_receiver(lanes_[queue_pair]); }
  bool is_drained(uint32_t queue_pair);
  bool renew_pair(uint32_t queue_pair, RecoveryRecord& record);
  bool connect_pair(uint32_t queue_pair, const RecoveryRecord& offer);
  void give_up_dying_pairs(int64_t) {
    find_dying(recovery(), [&](uint32_t q) { fail_queue_pair(q, false, consumed()); });
  }
  void give_up_silent_pair(uint32_t) { violation_ = "the receiver's device is silent"; }
  void reap_pages() {}
  void note_post(uint32_t, uint64_t, uint32_t) {}
  void note_grant(uint32_t) {}
  void note_consumed(uint32_t) {}
  void note_flush(uint32_t) {}
  void note_flush_done(uint32_t) {}
  void note_broken(uint32_t) {}
  void note_broken_by_peer() {}

  bool is_here(const Received& received) const;
  void take_back(const Received& received);
  void work_locally();
  void note_written(uint32_t rail, uint32_t sequence);

  std::array<SimTypes::Memory, 2> memories_{{{false}, {true}}};
  std::array<uint32_t, kMaxQueuePairs> keys_{};
  std::vector<PageInfo> pages_;
  std::vector<uint32_t> pushed_;  // a bit for each rail, of each page since it was posted
  // Of each rail: how often it has written, and how many of these writes are pushed.
  std::array<uint64_t, kMaxQueuePairs> writes_{}, pushed_writes_{};
  // The last write of each rail to each message of the ring; 0: it has not written.
  std::array<std::array<uint64_t, kMaxQueuePairs>, kMessageRing> last_write_{};
  std::deque<LocalWork> local_;
  uint64_t local_done_ = 0;
};

}  // namespace verbena::protocol::simulation
