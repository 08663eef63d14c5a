// Datagrams that a plan changes, repeats or delays: their bytes, and when they leave.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "softverbs/engine/datagram.h"
#include "softverbs/engine/objects.h"
#include "softverbs/engine/operation.h"
#include "softverbs/engine/send_queue.h"

namespace verbena::softverbs {
struct Qp;
}  // namespace verbena::softverbs

namespace verbena::softverbs::faults {

class Schedule;
struct Fate;

// Datagrams that a plan strikes: their bytes are copied, so that the application may have its memory back,
// and leave changed, more than once, or after others. Any thread.
class HeldDatagrams {
 public:
  explicit HeldDatagrams(Schedule& schedule) : schedule_(schedule) {}

  // Takes over a datagram, to be carried as its fate says.
  void take(Operation& op, const Fate& fate);
  // One more has left on the rail.
  void note_left(uint32_t rail);
  // Sends those that nothing is to overtake any more, many by one copy. After each run of a send queue.
  void send_due(uint32_t rail);
  // What its queue pair still holds is lost.
  void forget(Qp& qp);

 private:
  struct Datagram {
    Qp* qp;
    SendRequest request;
    Ah handle;
    std::vector<uint8_t> bytes;
    std::array<uint8_t, 40> header_flips;  // of the GRH
    Operation op;
  };
  struct Held {
    uint64_t leaves_at;  // once so many datagrams of the rail have left
    uint64_t leaves_ns;  // at the latest
    std::unique_ptr<Datagram> datagram;
  };
  struct Rail {
    std::mutex mutex;
    std::vector<Held> held;                        // by leaves_at
    std::vector<std::unique_ptr<Datagram>> due;    // of send_due()
    std::vector<std::unique_ptr<Datagram>> spare;  // that have left: the next ones need no memory
    DatagramChain chain;
    std::atomic<uint64_t> left = 0;
    bool wakes = false;  // the schedule knows when to look for some that nothing overtakes
  };

  static void hold(Rail& rail, Operation& op, const Fate& fate, uint64_t leaves_at);
  static void flip(Datagram& datagram, const Fate& fate);
  static void begin(Rail& rail, Datagram& datagram);
  void wake_later(uint32_t rail, uint64_t not_before_ns);
  void look_for_due(uint32_t rail);

  Schedule& schedule_;
  std::array<Rail, kMaxDevices> rails_;
};

}  // namespace verbena::softverbs::faults
