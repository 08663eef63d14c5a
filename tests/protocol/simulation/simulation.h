// Two applications, two ends and a network, run to the end; every byte and every order is looked at.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "protocol/simulation/model_receiver.h"
#include "protocol/simulation/model_sender.h"

namespace verbena::protocol::simulation {

struct Report {
  std::string problem;  // empty: all went well
  uint64_t staged_messages = 0, direct_messages = 0, steps = 0;
};

class Simulation {
 public:
  // `meta` is zero, and zero again afterwards if all went well; sharing it saves clearing half a megabyte.
  Simulation(const Shape& shape, uint64_t seed, NetUnpackMeta* meta);
  Report run();

 private:
  struct Sent {
    uint32_t index;
    std::vector<std::byte> data;
  };
  struct Posted {
    uint32_t index;
    bool is_reported = false;
    std::vector<std::byte> memory;  // with a guard on both sides
  };

  void step_sender();
  void step_receiver();
  void post_send();
  void finish_some_send();
  void post_receive();
  void touch_some_receive();
  void verify(Posted& posted, uint64_t bytes);
  void expect_rest();
  bool is_finished() const;
  void fail(const std::string& problem);

  const Shape& shape_;
  Random random_;
  Network network_;
  NetUnpackMeta* meta_;
  ModelSender sender_;
  ModelReceiver receiver_;
  std::vector<Sent> sent_;      // sends that are open
  std::vector<Posted> posted_;  // receives that are open
  uint64_t kernel_head_ = 0;    // slots the kernel has used, in posting order
  uint32_t received_ = 0;       // messages that are consumed
  Report report_;
};

}  // namespace verbena::protocol::simulation
