// The receiving end, made of the protocol's parts as plugin/transport/receiver.cc is, over the simulated
// network.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "protocol/arrivals.h"
#include "protocol/credits.h"
#include "protocol/simulation/network.h"
#include "protocol/unpack_queue.h"

namespace verbena::protocol::simulation {

class ModelReceiver {
 public:
  ModelReceiver(const Shape& shape, Network& network, NetUnpackMeta* meta);

  // False: no room now.
  bool post(uint8_t* data, uint32_t room_bytes, bool has_slot, bool is_unpacked);
  // Done; for an unpacked message its slot is published.
  bool test(uint32_t sequence, uint64_t* bytes);
  void consume(uint32_t sequence);
  void progress();

  uint32_t next() const { return next_; }
  // The slot that the kernel must unpack for this message.
  uint32_t slot(uint32_t sequence) const { return ring_[sequence % kMessageRing].slot; }
  const std::string& violation() const { return violation_; }

 private:
  struct Message {
    bool is_posted = false, is_ready = false, has_slot = false, is_unpacked = false;
    uint32_t sequence = 0, slot = 0, room_bytes = 0;
    uint8_t* data = nullptr;
    Arrivals arrivals;
    std::vector<Received> pages;
  };

  void absorb(const Received& received);
  void give_back(const Received& received);
  void send_grants();
  bool place(Message& message);

  const Shape& shape_;
  Network& network_;
  UnpackQueue queue_;
  ReceiverCredits credits_;
  std::array<Message, kMessageRing> ring_;
  uint32_t next_, next_grant_, consumed_;
  std::string violation_;
};

}  // namespace verbena::protocol::simulation
