#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "softverbs/datagram.h"
#include "softverbs/objects.h"
#include "softverbs/operation.h"
#include "softverbs/send_queue.h"

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
    uint64_t leaves_ns;                    // at the latest
  };
  struct Rail {
    std::mutex mutex;
    std::multimap<uint64_t, Datagram> held;   // by how many datagrams of the rail have left by then
    std::vector<std::vector<uint8_t>> spare;  // buffers of those that have left
    std::vector<uint8_t> take_buffer(size_t bytes);
    std::deque<Operation> operations;  // of send_due()
    DatagramChain chain;
    uint64_t left = 0;
    bool wakes = false;  // the schedule knows when to look for some that nothing overtakes
  };

  static void flip(Datagram& datagram, const Fate& fate);
  static void begin(Rail& rail, Datagram& datagram);
  void wake_later(uint32_t rail);

  Schedule& schedule_;
  std::array<Rail, kMaxDevices> rails_;
};

}  // namespace verbena::softverbs::faults
