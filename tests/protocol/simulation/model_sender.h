// The sending end, made of the protocol's parts as plugin/transport/sender.cc is, over the simulated network.
#pragma once

#include <array>
#include <string>

#include "protocol/chunking.h"
#include "protocol/credits.h"
#include "protocol/simulation/network.h"

namespace verbena::protocol::simulation {

class ModelSender {
 public:
  ModelSender(const Shape& shape, Network& network);

  // False: the ring is full.
  bool post(const uint8_t* data, uint32_t length_bytes, bool may_stage);
  bool is_done(uint32_t sequence);
  void progress();

  uint32_t next() const { return next_; }
  const std::string& violation() const { return violation_; }
  uint64_t staged_messages() const { return staged_; }
  uint64_t direct_messages() const { return direct_; }

 private:
  struct Message {
    bool in_use = false, is_decided = false, is_staged = false, may_stage = false;
    const uint8_t* data = nullptr;
    uint32_t length_bytes = 0, sequence = 0, next_chunk = 0, outstanding = 0;
    ChunkPlan plan;
    Grant grant;
    bool is_posted() const { return is_decided && next_chunk == plan.count; }
  };

  bool absorb_credits();
  bool decide(Message& message);
  void post_chunks(Message& message);
  void post_chunk(Message& message, uint32_t queue_pair);
  bool read_grant(Message& message) const;

  const Shape& shape_;
  Network& network_;
  SenderCredits credits_;
  std::array<Message, kMessageRing> ring_;
  uint32_t next_, posting_, consumed_, rotation_ = 0, max_staged_chunks_;
  uint64_t staged_ = 0, direct_ = 0;
  std::string violation_;
};

}  // namespace verbena::protocol::simulation
