// One request of one end, posted when it is made, then tested as NCCL does.
#pragma once

#include <gtest/gtest.h>

#include "transport/support/connection.h"

namespace verbena::transport {

inline constexpr size_t kLongBytes = 100'000;  // direct by default: it needs a grant

struct OpenSend {
  OpenSend(ConnectedPair& connection, const Nic& nic, size_t length_bytes = kLongBytes,
           bool may_stage = false)
      : sender(*connection.sender), memory(nic, length_bytes) {
    EXPECT_TRUE(sender.post(memory.bytes().data(), length_bytes, memory.registration(), may_stage, &request));
  }
  bool test() {
    bool is_done = false;
    outcome = sender.test(*static_cast<SendMessage*>(request), &is_done);
    return is_done;
  }
  Sender& sender;
  Memory memory;
  Request* request = nullptr;
  base::Outcome outcome;
};
struct OpenReceive {
  OpenReceive(ConnectedPair& connection, const Nic& nic)
      : receiver(*connection.receiving.receiver), memory(nic, kLongBytes) {
    EXPECT_TRUE(receiver.post(memory.bytes().data(), kLongBytes, memory.registration(),
                              ReceiveClass::kSlotOnly, &request));
  }
  bool test() {
    bool is_done = false;
    uint64_t bytes = 0;
    outcome = receiver.test(*static_cast<ReceiveMessage*>(request), &is_done, &bytes);
    return is_done;
  }
  Receiver& receiver;
  Memory memory;
  Request* request = nullptr;
  base::Outcome outcome;
};

}  // namespace verbena::transport
