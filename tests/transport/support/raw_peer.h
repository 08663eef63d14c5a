// Peers that shake hands properly and then do as they please.
#pragma once

#include "transport/support/connection.h"

namespace verbena::transport {

// In the place of a Sender: any immediate, any length, with or without credit.
class RawSender {
 public:
  // Meets a listener of this process; the receiver comes out in `*end`.
  RawSender(const Nic& nic, bool unpacks, AcceptedEnd* end);

  const protocol::Welcome& welcome() const { return welcome_; }
  // Where the receiver writes.
  const protocol::ControlBlock& control() const {
    return *reinterpret_cast<const protocol::ControlBlock*>(control_.address());
  }
  void send(uint32_t imm, uint32_t length_bytes);
  void write(uint32_t imm, uint64_t address, uint32_t remote_key, uint32_t length_bytes);

 private:
  void post(verbs::WorkRequest request);

  Memory memory_;
  Link link_;
  ControlMemory control_;
  base::Socket socket_;
  protocol::Welcome welcome_{};
};

// In the place of a Receiver, in the sender's own process: what it "writes" is put into the sender's memory.
class RawReceiver {
 public:
  RawReceiver(const Nic& nic, uint32_t window, std::unique_ptr<Sender>* sender, bool stages = true);

  protocol::ControlBlock& control() {
    return *reinterpret_cast<protocol::ControlBlock*>(hello_.control_address);
  }

 private:
  std::shared_ptr<BouncePool> pool_;
  Link link_;
  base::Socket socket_;
  protocol::Hello hello_{};
};

}  // namespace verbena::transport
