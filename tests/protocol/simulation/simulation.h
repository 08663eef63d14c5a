// Two applications, two ends and a network, run to the end; every byte and every order is looked at.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "protocol/simulation/injector.h"
#include "protocol/simulation/sim_port.h"

namespace verbena::protocol::simulation {

struct Report {
  std::string problem;                       // empty: all went well
  std::string sender_error, receiver_error;  // what the ends reported
  uint64_t staged_messages = 0, direct_messages = 0, steps = 0;
  uint64_t replays = 0, revivals = 0, failures = 0, faults = 0;
  std::array<uint64_t, kMaxQueuePairs> packets{};  // of each queue pair
  uint64_t plain_writes = 0;                       // of them without an immediate
};

// Memory that runs share: clearing half a megabyte and allocating would cost more than a run.
struct Scratch {
  NetUnpackMeta* meta;  // zero between runs
  std::vector<std::byte> sends, receives;
};

class Simulation {
 public:
  Simulation(const Shape& shape, uint64_t seed, Scratch& scratch);
  Report run();
  const FaultCounts& fault_counts() const { return injector_.counts(); }

 private:
  struct Send {
    uint32_t index;
    std::span<std::byte> data;
  };
  struct Receive {
    uint32_t index;  // of its first message
    uint32_t count = 1;
    bool is_reported = false;
    std::array<std::span<std::byte>, kMaxGroup> memory{};  // each with a guard on both sides
    std::array<uint64_t, kMaxGroup> bytes{};
    SimReceiver::Flush* flush = nullptr;  // while NCCL waits for it
    bool is_flushed = false;
  };

  void step();
  void step_network();
  void step_sender();
  void step_receiver();
  void post_send();
  void finish_some_send();
  void post_receive();
  void touch_some_receive();
  bool flush(Receive& receive);
  bool post(Receive& receive);
  uint32_t choose_send();
  void verify(const Receive& receive, uint32_t part);
  void note_progress() { progress_ns_ = network_.now_ns(); }
  bool is_sender_done() const { return sends_.empty() && sender_.next() == end_; }
  bool is_receiver_done() const { return received_ == shape_.messages.size(); }
  bool is_settled();
  void expect_fair_end();
  void expect_rest();
  void expect_credits();
  void clear_slots();
  void fail(const std::string& problem);

  const Shape& shape_;
  Scratch& scratch_;
  Random random_;
  Network network_;
  ControlChannel to_sender_, to_receiver_;
  SimSender sender_;
  SimReceiver receiver_;
  Injector injector_;
  uint32_t end_;                                // sequence number behind the last message
  std::vector<std::vector<uint32_t>> streams_;  // messages of each tag, in order
  std::vector<size_t> streamed_;                // how many of them were sent
  std::vector<Send> sends_;                     // that are open
  std::vector<Receive> receives_;               // that are open
  size_t send_bytes_ = 0, receive_bytes_ = 0;   // of scratch memory, used
  bool has_sender_left_ = false, has_receiver_left_ = false;
  uint64_t kernel_head_ = 0;  // slots the kernel has used, in posting order
  uint32_t received_ = 0;     // messages that are consumed
  int64_t progress_ns_ = 0;
  Report report_;
};

}  // namespace verbena::protocol::simulation
