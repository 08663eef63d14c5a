// A list of messages sent over one connection and looked at byte by byte: each end is a machine that takes
// one step at a time, so that both may run in one process or in two.
#pragma once

#include <string>
#include <vector>

#include "protocol/random.h"
#include "transport/support/connection.h"

namespace verbena::transport {

struct TransferMessage {
  size_t length_bytes = 0;
  size_t extra_room_bytes = 0;                  // the receive is that much longer
  uint32_t source_shift = 0, target_shift = 0;  // from a 64-byte boundary
  bool may_stage = true;
  ReceiveClass receive_class = ReceiveClass::kUnpacked;
};

struct Transfer {
  std::vector<TransferMessage> messages;
  uint32_t sends_ahead = 8, receives_ahead = 8;  // open at a time
  uint64_t seed = 1;                             // of the order in which requests are tested

  size_t slot_bytes() const;  // room for any of the messages, with guards
};

class SendingSide {
 public:
  SendingSide(Sender& sender, const Nic& nic, const Transfer& transfer);
  // Takes a step; true when all is done.
  bool step();
  // Status::kOk unless something failed, which ends it.
  base::Status status() const { return status_; }
  uint32_t posted() const { return next_; }
  uint32_t finished() const { return finished_; }

 private:
  void post_next();
  bool test_some();

  Sender& sender_;
  const Transfer& transfer_;
  Memory memory_;
  protocol::Random random_;
  struct Open {
    SendMessage* message;
    uint32_t place;
  };
  std::vector<Open> open_;
  std::vector<uint32_t> free_places_;
  uint32_t next_ = 0, finished_ = 0;
  base::Status status_ = base::Status::kOk;
};

class ReceivingSide {
 public:
  ReceivingSide(AcceptedEnd& end, const Nic& nic, const Transfer& transfer);
  bool step();
  base::Status status() const { return status_; }
  uint32_t posted() const { return next_; }
  uint32_t finished() const { return finished_; }
  // What was wrong with the bytes, lengths or slots; empty if nothing.
  const std::string& problem() const { return problem_; }

 private:
  struct Open {
    ReceiveMessage* message;
    uint32_t index, place, slot;
    bool is_reported;
  };

  void post_next();
  bool test_some();
  void look_at(const Open& open, uint64_t bytes);
  std::span<std::byte> whole_place(uint32_t place);

  AcceptedEnd& end_;
  const Transfer& transfer_;
  Memory memory_;
  protocol::Random random_;
  std::vector<Open> open_;
  std::vector<uint32_t> free_places_;
  uint32_t next_ = 0, finished_ = 0;
  base::Status status_ = base::Status::kOk;
  std::string problem_;
};

// A step of each; true when all of both is done.
bool step_both(SendingSide& sender, ReceivingSide& receiver);

// Both sides in this process until both are done, one fails or the patience is over. A failed expectation
// says which.
void expect_transfer_here(ConnectedPair& connection, const Nic& sending, const Nic& receiving,
                          const Transfer& transfer);

}  // namespace verbena::transport
