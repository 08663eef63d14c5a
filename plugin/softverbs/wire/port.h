// A listener of this process, and its clients that have not identified themselves yet.
#pragma once

#include <map>

#include "softverbs/wire/process_link.h"

namespace verbena::softverbs::wire {

class Wire;

// One address of this process: its listener, the loops of its streams, and its clients that have not
// identified themselves yet.
class Port : public Watched {
 public:
  Port(Wire& owner, const ibv_gid& at) : wire(owner), address(at) {}
  Wire& wire;
  const ibv_gid address;
  std::vector<std::unique_ptr<Loop>> loops;

  bool listen(uint16_t number, int& error);
  void stop_listening();
  int start();  // 0 or an errno
  Loop& get_loop(uint32_t stream) { return *loops[stream % loops.size()]; }
  void on_ready(uint32_t events) override;  // a client connects

 private:
  struct Caller : Watched {
    Caller(Port& at, int descriptor, const ibv_gid& from, uint64_t now_ns)
        : port(at), fd(descriptor), address(from), since_ns(now_ns) {}
    Port& port;
    int fd;
    const ibv_gid address;
    const uint64_t since_ns;
    Hello hello{}, answer{};
    Ready ready{};
    bool is_answered = false;  // with a key: waits for the client's proof
    size_t received = 0;       // bytes of the expected record received so far
    void on_ready(uint32_t events) override;
  };
  void dismiss(Caller& caller);
  void judge(Caller& caller);
  void refuse(Caller& caller, uint16_t why);
  void admit(Caller& caller);
  void make_room();
  void pause();
  void keep_house();

  int listener_ = -1;
  uint64_t paused_since_ns_ = 0;  // not 0: no descriptor was left for a client
  size_t max_callers_ = 0;
  std::map<int, std::shared_ptr<Caller>> callers_;  // by descriptor; needs the first loop's turn
};

}  // namespace verbena::softverbs::wire
