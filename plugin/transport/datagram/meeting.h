// How a channel comes about: the listener's handle, the caller's hello over the network, the welcome. Polled
// from NCCL's calls; hello and welcome are repeated until they have arrived or the deadline has passed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/status.h"
#include "protocol/datagram/greeting.h"
#include "transport/datagram/channel.h"
#include "transport/datagram/peer.h"

namespace verbena::transport::datagram {

class Engine;

class Listener {
 public:
  static base::Result<std::unique_ptr<Listener>> open(const std::shared_ptr<Engine>& engine,
                                                      protocol::datagram::DatagramHandle* handle);
  ~Listener();

  // Null until a peer's hello is here. `unpacks`: a kernel will, of the calling thread's GPU. `connections`:
  // as many as are expected there; 0: not known.
  base::Result<std::unique_ptr<ReceiveEnd>> poll(bool unpacks, uint32_t connections);
  // By the engine; with its token. The first one counts.
  void note_hello(const protocol::datagram::Greeting& hello) {
    if (!hello_) hello_ = hello;
  }
  // Of an engine that is given up.
  void forget_hello(uint64_t engine_id) {
    if (hello_ && hello_->engine.id == engine_id) hello_.reset();
  }

 private:
  Listener(std::shared_ptr<Engine> engine, uint64_t nonce);

  const std::shared_ptr<Engine> engine_;
  const uint64_t nonce_;
  base::Deadline deadline_;
  bool is_polled_ = false;  // the deadline runs from the first poll
  std::optional<protocol::datagram::Greeting> hello_;
  std::unique_ptr<LendingQueue> lending_;  // of the next channel
};

class Connector {
 public:
  // `handle` has passed protocol::datagram::check_handle().
  static base::Result<std::unique_ptr<Connector>> start(std::shared_ptr<Engine> engine,
                                                        const protocol::datagram::DatagramHandle& handle);
  ~Connector();

  // Null until the welcome is here.
  base::Result<std::unique_ptr<SendEnd>> poll();
  uint64_t nonce() const { return handle_.nonce; }
  // By the engine; with its token. The first one counts.
  void note_welcome(uint32_t peer, const protocol::datagram::Greeting& welcome) {
    if (!welcome_ && is_calling_ && peer == peer_ && welcome.channel == wire_ &&
        welcome.nonce == handle_.nonce)
      welcome_ = welcome;
  }
  // It has this channel, and its next poll fails: nobody may ever make that.
  bool has_timed_out(uint32_t channel) const {
    return is_calling_ && channel == channel_ && deadline_.has_passed();
  }
  void note_farewell(uint32_t channel, int64_t now_ns) {
    if (is_calling_ && channel == channel_ && closed_ns_ == 0) closed_ns_ = now_ns;
  }

 private:
  Connector(std::shared_ptr<Engine> engine, const protocol::datagram::DatagramHandle& handle);
  void call_again();
  base::Result<std::unique_ptr<SendEnd>> finish(const protocol::datagram::Greeting& welcome, bool is_met,
                                                bool has_many);
  std::string describe() const;

  const std::shared_ptr<Engine> engine_;
  const protocol::datagram::DatagramHandle handle_;
  const base::Deadline deadline_;
  GreetingWay last_, next_;  // of the last hello and of the next
  uint32_t hellos_ = 0;      // sent so far
  bool is_calling_ = false;  // it has a channel, and says hello
  bool is_done_ = false;     // the channel is its end's
  uint32_t peer_ = 0, channel_ = 0;
  uint16_t wire_ = 0;
  int64_t next_hello_ns_ = 0, delay_ns_ = 0;
  int64_t closed_ns_ = 0;  // when the listener said that its end is closed already; 0: it has not
  std::optional<protocol::datagram::Greeting> welcome_;
};

}  // namespace verbena::transport::datagram
