// What lies between the two ends: queue pairs that each keep their order, as a reliable connection does, and
// promise nothing about one another. Posting is immediate; what was posted arrives when advance() picks it.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "protocol/random.h"
#include "protocol/simulation/shape.h"
#include "protocol/wire.h"

namespace verbena::protocol::simulation {

// A work request of the sender: into the next page of the receive queue, or to a place.
struct Packet {
  uint32_t imm;
  uint32_t sequence;
  const uint8_t* source;  // read when it arrives: the application must not touch it before
  uint32_t length_bytes;
  uint8_t* target;  // null: a page
};

struct Received {
  uint32_t queue_pair, imm, length_bytes, page;
  bool is_write;
};

class Network {
 public:
  Network(const Shape& shape, Random& random);

  void send(uint32_t queue_pair, const Packet& packet) { packets_[queue_pair].push_back(packet); }
  // The number of a message one of whose packets is done.
  std::optional<uint32_t> poll_sent();

  void post_page(uint32_t rail, uint32_t page) { queues_[rail].push_back(page); }
  std::optional<Received> poll_received();
  void write_control(uint32_t queue_pair, const void* line, size_t offset_bytes);

  // One thing happens, if anything is under way.
  void advance();
  bool is_quiet() const;

  const ControlBlock& control() const { return control_; }
  uint8_t* page(uint32_t index) { return pages_.data() + index * shape_.page_bytes; }
  uint8_t* bounce() { return pages_.data(); }
  size_t count_posted_pages() const;
  // What no reliable connection with credits may meet; empty if all went well.
  const std::string& violation() const { return violation_; }

 private:
  struct ControlWrite {
    uint8_t line[64];
    size_t offset_bytes;
  };

  void deliver_packet(uint32_t queue_pair);
  void deliver_control(uint32_t queue_pair);
  void deliver_acknowledgement(uint32_t queue_pair);
  void place_early(uint32_t queue_pair);

  const Shape& shape_;
  Random& random_;
  std::vector<std::deque<Packet>> packets_;         // by queue pair, to the receiver
  std::vector<std::deque<ControlWrite>> controls_;  // by queue pair, to the sender
  std::vector<std::deque<uint32_t>> acknowledged_;  // by queue pair, to the sender
  std::vector<uint32_t> frozen_steps_;              // by channel
  std::vector<std::deque<uint32_t>> queues_;        // by rail: posted pages
  std::deque<Received> received_;
  std::deque<uint32_t> sent_;
  std::vector<uint8_t> pages_;
  ControlBlock control_{};
  std::string violation_;
};

}  // namespace verbena::protocol::simulation
