// Who there is to tell of when somebody asks for the state of the process (state_report.h): every end of a
// connection and every handshake under way.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace verbena::transport {

struct Telling {
  std::string text;
  bool is_idle = false;  // nothing is open and nothing is wrong
};

class RosterMember {
 public:
  // NCCL's communicator that it belongs to; 0: not known.
  void name_communicator(uint64_t id) { communicator_id_.store(id, std::memory_order_relaxed); }

 protected:
  // Its state in full. False: another thread is at work on it, and has been asked to tell (Roster::answer).
  virtual bool tell(Telling& telling) = 0;
  // What can be seen while another thread is at work on it.
  virtual Telling tell_from_outside() const = 0;
  uint64_t communicator_id() const { return communicator_id_.load(std::memory_order_relaxed); }
  ~RosterMember() = default;

 private:
  friend class Roster;
  std::atomic<uint64_t> communicator_id_{0};
};

// Any thread. A member's methods are called under the mutex, one member at a time; they lock nothing that
// might be held by who calls the roster.
class Roster {
 public:
  static Roster& instance();
  bool is_empty();

  void add(RosterMember* member);
  // When this returns nobody tells of it, and nobody will.
  void remove(RosterMember* member);
  // By the thread that is at work on it.
  void answer(const RosterMember* member, Telling telling);

  // A new round of telling; what is answered from now on belongs to it.
  uint64_t begin_round();
  // Asks those that have not told yet in this round; how many still have not.
  size_t ask(uint64_t round);
  // What all told, in the order of joining. Those that have not are looked at from outside.
  std::vector<Telling> take_tellings(uint64_t round);

 private:
  struct Entry {
    RosterMember* member = nullptr;
    uint64_t round = 0;  // the newest in which it told
    Telling telling;
  };

  std::mutex mutex_;                   // guards all below
  std::map<uint64_t, Entry> entries_;  // by the order of joining
  uint64_t next_key_ = 1;
  uint64_t round_ = 0;
};

}  // namespace verbena::transport
