// Holds the datagrams that a plan changes, repeats or delays, with their bytes and the time to send them.
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

// Fault-injected datagrams. The bytes of a datagram are copied, so that the application can reuse its memory.
// A datagram is sent changed, repeatedly, or after other datagrams. Any thread may call the functions.
class HeldDatagrams {
 public:
  explicit HeldDatagrams(Schedule& schedule) : schedule_(schedule) {}

  // Takes over a datagram and sends it as `fate` demands.
  void take(Operation& op, const Fate& fate);
  // Counts a datagram that was sent on the rail.
  void note_left(uint32_t rail);
  // Sends the held datagrams that enough other datagrams have overtaken. One copy sends many datagrams.
  // Called after each run of a send queue.
  void send_due(uint32_t rail);
  // Drops the held datagrams of a queue pair.
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
    uint64_t leaves_at;  // sent once this many datagrams of the rail have been sent
    uint64_t leaves_ns;  // sent at this time at the latest
    std::unique_ptr<Datagram> datagram;
  };
  struct Rail {
    std::mutex mutex;
    std::vector<Held> held;                        // by leaves_at
    std::vector<std::unique_ptr<Datagram>> due;    // of send_due()
    std::vector<std::unique_ptr<Datagram>> spare;  // sent datagrams, whose memory is reused
    DatagramChain chain;
    std::atomic<uint64_t> left = 0;
    bool wakes = false;  // the schedule has a task for datagrams that are due by time
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
