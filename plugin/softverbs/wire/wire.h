// The network side of this process: its ports, its links, and its queue pairs by number.
#pragma once

#include <map>

#include "softverbs/wire/address.h"
#include "softverbs/wire/port.h"
#include "softverbs/wire/process_link.h"

namespace verbena::softverbs::wire {

// This process on the network: its ports, its links, its queue pairs.
class Wire {
 public:
  Wire();
  // Opens the ports of a slot. Returns false if another process has one of them.
  bool claim(uint32_t slot);
  int start();  // starts its threads, once; returns 0 or an errno
  bool is_listening() const { return is_listening_; }
  uint32_t slot() const { return slot_; }

  Port& get_port(uint32_t rail) { return *port_of_rail_[rail]; }
  const std::vector<std::unique_ptr<Port>>& ports() const { return ports_; }
  void poll(uint32_t rail);                          // called while the application polls a completion queue
  void quiesce();                                    // see Loop::quiesce(); for all loops
  bool prepare_gpu(uint32_t rail, uint32_t device);  // false if the copier fails
  void leave();                                      // at exit: sends what is still queued

  // Returns the link to a queue pair's process, and creates it if there is none.
  std::shared_ptr<ProcessLink> get_link(uint32_t rail, const ibv_gid& peer, uint32_t qp_number);
  void forget_memory(uint32_t key);  // after it returns, no stream refers to the memory
  std::shared_ptr<ProcessLink> join(Port& port,
                                    // Returns the link of an accepted stream, or null if it is refused.
                                    const Hello& hello);
  void forget(const std::shared_ptr<ProcessLink>& link);
  void limit_strangers();  // limits accepted links whose client is unknown
  void check_links(
      Port& port);  // called by a loop: ends links whose peer has been closing them, or silent, for too long

  // A queue pair that a loop finds stays valid until the loop's turn ends.
  void add_qp(Qp& qp);
  void remove_qp(Qp& qp);
  Qp* find_qp(uint32_t number) const;
  void for_each_qp(const std::function<void(Qp&)>& visit);  // with a turn

 private:
  using LinkKey = std::tuple<Port*, std::array<uint8_t, 16>, uint16_t>;
  void set_active() { is_active_.store(true); }

  uint32_t slot_ = 0;
  bool is_listening_ = false;
  std::mutex start_mutex_;
  std::atomic<bool> is_started_{false};
  std::atomic<bool> is_active_{false};  // a link has existed
  std::vector<std::unique_ptr<Port>> ports_;
  std::vector<Port*> port_of_rail_;
  std::mutex links_mutex_;
  std::map<LinkKey, std::shared_ptr<ProcessLink>> links_;
  std::map<std::pair<uint64_t, std::array<uint8_t, 16>>, std::shared_ptr<ProcessLink>> accepted_;
  std::vector<std::shared_ptr<ProcessLink>> strangers_;  // accepted links whose client is not known yet
  std::unique_ptr<std::atomic<Qp*>[]> qps_;              // by index
};

Wire* get_wire();  // null if there is none

Hello make_hello(const ibv_gid& source, const ibv_gid& destination, uint32_t slot);
bool is_of_our_version(const Hello& hello);
uint16_t check_hello(const Hello& hello, uint32_t own_slot);  // Unwelcome

}  // namespace verbena::softverbs::wire
