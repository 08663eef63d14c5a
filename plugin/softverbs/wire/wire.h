#pragma once

#include <map>

#include "softverbs/wire/address.h"
#include "softverbs/wire/link.h"
#include "softverbs/wire/port.h"

namespace verbena::softverbs::wire {

// This process's place on the network.
class Wire {
 public:
  Wire();
  // Takes the ports of a slot. False when another process has one of them.
  bool claim(uint32_t slot);
  void start();  // its threads, once
  bool is_listening() const { return is_listening_; }
  uint32_t slot() const { return slot_; }

  Port& get_port(uint32_t rail) { return *port_of_rail_[rail]; }
  const std::vector<std::unique_ptr<Port>>& ports() const { return ports_; }
  void poll(uint32_t rail);                                  // while the application polls a completion queue
  void quiesce();                                            // of all loops
  bool prepare_gpu(uint32_t rail, cuda::CUcontext context);  // false when CUDA refuses
  void leave();                                              // at exit: sends what is owed

  // The link to a queue pair's process; made when there is none.
  std::shared_ptr<Link> get_link(uint32_t rail, const ibv_gid& peer, uint32_t qp_number);
  void forget_memory(uint32_t key);                            // no stream refers to it afterwards
  std::shared_ptr<Link> join(Port& port, const Hello& hello);  // of an accepted stream; null: refused
  void forget(const std::shared_ptr<Link>& link);
  void limit_strangers();        // among accepted links
  void check_links(Port& port);  // of a loop: ends those whose peer is closing them, or silent, for too long

  // What a loop finds stays until its turn ends.
  void add_qp(Qp& qp);
  void remove_qp(Qp& qp);
  Qp* find_qp(uint32_t number) const;
  void for_each_qp(const std::function<void(Qp&)>& visit);  // with a turn

 private:
  using LinkKey = std::tuple<Port*, std::array<uint8_t, 16>, uint16_t>;
  void set_active() { is_active_.store(true); }

  uint32_t slot_ = 0;
  bool is_listening_ = false;
  std::once_flag started_;
  std::atomic<bool> is_active_{false};  // there has been a link
  std::vector<std::unique_ptr<Port>> ports_;
  std::vector<Port*> port_of_rail_;
  std::mutex links_mutex_;
  std::map<LinkKey, std::shared_ptr<Link>> links_;
  std::map<std::pair<uint64_t, std::array<uint8_t, 16>>, std::shared_ptr<Link>> accepted_;
  std::vector<std::shared_ptr<Link>> strangers_;  // of the accepted ones, as far as it is known
  std::unique_ptr<std::atomic<Qp*>[]> qps_;       // by index
};

Wire* get_wire();  // null when there is none

Hello make_hello(const ibv_gid& source, const ibv_gid& destination, uint32_t slot);
bool is_of_our_version(const Hello& hello);
uint16_t check_hello(const Hello& hello, uint32_t own_slot);  // Unwelcome

}  // namespace verbena::softverbs::wire
