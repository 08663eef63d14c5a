// What lies between the two ends: lanes, that is lives of queue pairs, on rails that may be down; receive
// queues, one a rail, with their pages; both ends' completion queues; the sender's control block. Posting is
// immediate; what was posted moves when advance() picks it.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "protocol/random.h"
#include "protocol/receive_core.h"
#include "protocol/simulation/lane.h"
#include "protocol/simulation/shape.h"
#include "protocol/simulation/times.h"

namespace verbena::protocol::simulation {

inline constexpr uint32_t kNoLane = UINT32_MAX;

// A packet that is done, or has failed.
struct Sent {
  uint32_t lane, index;  // the how-many-th of the lane
  uint64_t cookie;
  bool has_failed, is_at_fault;
};

// Something that has arrived, or a control write that is done (neither page nor immediate).
struct Received {
  uint32_t lane, queue_pair, imm, length_bytes, page;
  bool is_write, is_control, has_failed;
  bool is_at_fault = false;
  uint32_t index = 0, offset_bytes = 0;  // of a control write
};

inline constexpr uint32_t kInterleavePercent = 10;

class Network {
 public:
  Network(const Shape& shape, Random& random);

  // Lanes. A new one has a sender's end, not connected.
  uint32_t make_lane(uint32_t queue_pair);
  Lane& lane(uint32_t id) { return lanes_[id]; }
  uint32_t count_lanes() const { return static_cast<uint32_t>(lanes_.size()); }
  void fail_sender(uint32_t id);
  void fail_receiver(uint32_t id);
  bool is_up(uint32_t rail) const { return now_ns_ >= down_until_ns_[rail]; }
  void take_down(uint32_t rail, int64_t until_ns) {
    down_until_ns_[rail] = std::max(down_until_ns_[rail], until_ns);
  }
  bool is_dead_for_ever(uint32_t rail) const { return down_until_ns_[rail] == INT64_MAX; }

  void send(uint32_t id, const Packet& packet) { lanes_[id].packets.requests.push_back(packet); }
  std::optional<Sent> poll_sent();

  void post_page(uint32_t rail, uint32_t page) { queues_[rail].push_back(page); }
  std::optional<Received> poll_received();
  void write_control(uint32_t id, const void* line, size_t offset_bytes, bool is_signaled);

  // One thing happens, if anything is under way.
  bool advance();
  // Sometimes: devices work on while an end computes.
  void interleave() {
    while (random_.happens(kInterleavePercent)) advance();
  }
  bool is_quiet();
  // What has been placed is reported: a device takes less time for that than a goodbye does to arrive.
  void report_all();

  int64_t now_ns() const { return now_ns_; }
  void pass_time(int64_t ns) { now_ns_ += ns; }

  ControlBlock& control() { return control_; }
  uint8_t* page(uint32_t index) { return pages_.data() + size_t{index} * shape_.page_bytes; }
  uint8_t* bounce() { return pages_.data(); }
  size_t count_posted_pages() const;
  // What no reliable connection with credits may meet; empty if all went well.
  const std::string& violation() const { return violation_; }

 private:
  uint32_t find_events(const Lane& lane) const;
  void happen(uint32_t id, uint32_t event);
  void place_packet(uint32_t id);
  void drain_packet(uint32_t id);
  uint32_t take_page(const Lane& lane);
  void place_early(const Packet& packet);
  void place_bytes(uint32_t id, const Packet& packet);
  void place_late(Lane& lane);
  void look_for_overtaking(const Stream<ControlWrite>& controls, const ControlWrite& write);
  void report(uint32_t id);
  void acknowledge(uint32_t id);
  ControlWrite* choose_control(Lane& lane);
  void place_control(Lane& lane);
  void acknowledge_control(uint32_t id);
  void flush(uint32_t id);
  void flush_control(uint32_t id);

  const Shape& shape_;
  Random& random_;
  int64_t now_ns_ = kStepNs;
  std::deque<Lane> lanes_;
  std::vector<int64_t> down_until_ns_;        // by rail
  std::vector<std::deque<uint32_t>> queues_;  // by rail: posted pages
  struct Placed {
    uint32_t imm, length_bytes, page;
    bool is_write, has_failed;
  };
  std::vector<std::deque<Placed>> placed_;  // by lane: not reported yet
  std::deque<Received> received_;
  std::deque<Sent> sent_;
  std::vector<uint8_t> pages_;
  ControlBlock control_{};
  std::string violation_;
};

}  // namespace verbena::protocol::simulation
