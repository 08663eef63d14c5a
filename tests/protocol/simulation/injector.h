// Lets the faults of a shape happen, each as soon as some queue pair is in the state that it is to meet.
#pragma once

#include "protocol/simulation/fault.h"
#include "protocol/simulation/sim_port.h"

namespace verbena::protocol::simulation {

class Injector {
 public:
  struct Run {
    const Shape& shape;
    Random& random;
    Network& network;
    SimSender& sender;
    SimReceiver& receiver;
    ControlChannel& to_sender;
    ControlChannel& to_receiver;
  };

  explicit Injector(const Run& run) : run_(run) {}

  void step();

  // Whether a reported error is a fair end of this run.
  bool may_fail() const { return may_fail_; }
  bool has_sender_left() const { return has_sender_left_; }
  bool has_receiver_left() const { return has_receiver_left_; }
  bool does_sender_sleep() const { return run_.network.now_ns() < sender_sleeps_until_ns_; }
  bool does_receiver_sleep() const { return run_.network.now_ns() < receiver_sleeps_until_ns_; }
  bool do_channels_sleep() const { return run_.network.now_ns() < channels_sleep_until_ns_; }
  const FaultCounts& counts() const { return counts_; }
  uint32_t injected() const { return injected_; }

 private:
  static constexpr uint32_t kPatienceSteps = 600;  // to wait for a state

  bool is_in_state(State state, uint32_t queue_pair) const;
  const Lane* find_lane(uint32_t queue_pair) const;
  bool inject(const Fault& fault, uint32_t queue_pair);
  bool fail_ends(uint32_t queue_pair, bool is_sender, bool is_receiver);
  bool refuse_request(uint32_t queue_pair);
  bool kill_rail(uint32_t rail);

  Run run_;
  uint32_t next_ = 0, waited_steps_ = 0;
  uint32_t injected_ = 0;
  bool may_fail_ = false, has_sender_left_ = false, has_receiver_left_ = false;
  int64_t sender_sleeps_until_ns_ = 0, receiver_sleeps_until_ns_ = 0, channels_sleep_until_ns_ = 0;
  FaultCounts counts_{};
};

}  // namespace verbena::protocol::simulation
