// All ends of connections and all handshakes in progress, for the state dump (state_dump.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace verbena::transport {

struct StateDump {
  std::string text;
  bool is_idle = false;  // nothing is open and nothing is wrong
};

class RegistryMember {
 public:
  // NCCL's communicator that it belongs to; 0: not known.
  void name_communicator(uint64_t id) { communicator_id_.store(id, std::memory_order_relaxed); }

 protected:
  // Its state in full. False: another thread has it, and was asked to answer (Registry::answer).
  virtual bool dump_state(StateDump& dump) = 0;
  // What can be read while another thread has it; fields may be torn.
  virtual StateDump dump_from_outside() const = 0;
  uint64_t communicator_id() const { return communicator_id_.load(std::memory_order_relaxed); }
  ~RegistryMember() = default;

 private:
  friend class Registry;
  std::atomic<uint64_t> communicator_id_{0};
  uint64_t key_ = 0;  // under the registry's mutex; 0: not in it
};

// Thread safe. A member's functions are called under the mutex, one member at a time; they must not lock
// anything that a caller of the registry may hold.
class Registry {
 public:
  static Registry& instance();
  bool is_empty();

  void add(RegistryMember* member);
  // Once this returns no thread calls the member any more.
  void remove(RegistryMember* member);
  // By the thread that has the member.
  void answer(const RegistryMember* member, StateDump dump);

  // Begins a new dump; answers from now on belong to it.
  uint64_t begin_round();
  // Asks members that have not answered in this round. Returns how many still have not.
  size_t ask(uint64_t round);
  // All answers, in the order of registration. Members that have not answered are read from outside.
  std::vector<StateDump> take_dumps(uint64_t round);

 private:
  struct Entry {
    RegistryMember* member = nullptr;
    uint64_t round = 0;  // the newest that it answered
    StateDump dump;
  };

  std::mutex mutex_;                   // guards all below
  std::map<uint64_t, Entry> entries_;  // by the order of joining
  uint64_t next_key_ = 1;
  uint64_t round_ = 0;
};

}  // namespace verbena::transport
