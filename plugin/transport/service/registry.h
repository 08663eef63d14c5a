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
  bool is_idle = false;  // no request is open and there is no error
};

class RegistryMember {
 public:
  // Sets the id of NCCL's communicator; 0 if unknown.
  void name_communicator(uint64_t id) { communicator_id_.store(id, std::memory_order_relaxed); }

 protected:
  // Writes the full state. Returns false if another thread holds the member; that thread was then asked to
  // answer (Registry::answer).
  virtual bool dump_state(StateDump& dump) = 0;
  // Returns the state that can be read while another thread holds the member. Fields may be inconsistent.
  virtual StateDump dump_from_outside() const = 0;
  uint64_t communicator_id() const { return communicator_id_.load(std::memory_order_relaxed); }
  ~RegistryMember() = default;

 private:
  friend class Registry;
  std::atomic<uint64_t> communicator_id_{0};
  uint64_t key_ = 0;  // guarded by the registry's mutex; 0 if not registered
};

// Thread safe. Calls the members' functions with the mutex held, one member at a time. They must not lock a
// mutex that a caller of the registry may hold.
class Registry {
 public:
  static Registry& instance();
  bool is_empty();

  void add(RegistryMember* member);
  // After the call returns, no thread calls the member.
  void remove(RegistryMember* member);
  // Called by the thread that holds the member.
  void answer(const RegistryMember* member, StateDump dump);

  // Begins a new dump. Later answers belong to this dump.
  uint64_t begin_round();
  // Asks the members that have not answered in this round. Returns the number of members that still have not
  // answered.
  size_t ask(uint64_t round);
  // Returns all answers, in the order of registration. Reads the members that have not answered by
  // dump_from_outside().
  std::vector<StateDump> take_dumps(uint64_t round);

 private:
  struct Entry {
    RegistryMember* member = nullptr;
    uint64_t round = 0;  // the newest round that it answered
    StateDump dump;
  };

  std::mutex mutex_;                   // guards the members below
  std::map<uint64_t, Entry> entries_;  // in the order of registration
  uint64_t next_key_ = 1;
  uint64_t round_ = 0;
};

}  // namespace verbena::transport
