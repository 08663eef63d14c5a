#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <mutex>
#include <vector>

#include "softverbs/objects.h"
#include "softverbs/send_queue.h"

namespace verbena::softverbs {
struct Operation;
struct Qp;
}  // namespace verbena::softverbs

namespace verbena::softverbs::faults {

class Schedule;
struct Fate;

// Datagrams that a plan strikes: their bytes are copied, so that the application may have its memory back,
// and leave changed, more than once, or after others. Where a plan speaks of datagrams the rail's worker
// carries all of them, and is the only one here but for forget().
class HeldDatagrams {
 public:
  explicit HeldDatagrams(Schedule& schedule) : schedule_(schedule) {}

  // Carries a datagram as its fate says.
  void carry(Operation& op, const Fate& fate);
  // One more has left on the rail: those that it was the last to overtake leave, too.
  void note_left(uint32_t rail);
  // What its queue pair still holds is lost. Any thread.
  void forget(Qp& qp);

 private:
  struct Datagram {
    Qp* qp;
    SendRequest request;
    Ah handle;
    std::vector<uint8_t> bytes;
    std::array<uint8_t, 40> header_flips;  // of the GRH
    uint64_t leaves_at;                    // datagrams of the rail
    uint64_t leaves_ns;                    // at the latest
  };
  struct Rail {
    std::mutex mutex;
    std::list<Datagram> held;
    uint64_t left = 0;
    bool wakes = false;  // the schedule knows when to look for some that nothing overtakes
  };

  static void flip(Datagram& datagram, const Fate& fate);
  void send(Datagram& datagram);
  void send_due(uint32_t rail);
  void wake_later(uint32_t rail);

  Schedule& schedule_;
  std::array<Rail, kMaxDevices> rails_;
};

}  // namespace verbena::softverbs::faults
