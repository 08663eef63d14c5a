// Sets up a channel: the listener's handle, the client's connect request over the network, and the accept
// message. NCCL's calls poll both ends. Request and accept message are repeated until they have arrived or
// the deadline has passed.
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

  // Returns null until a peer's connect request has arrived. `unpacks` means that a kernel of the calling
  // thread's GPU unpacks receives. `connections` is the number of connections expected on that GPU; 0 if
  // unknown.
  base::Result<std::unique_ptr<ReceiveEnd>> poll(bool unpacks, uint32_t connections);
  // Called by the engine with its token. Only the first request is kept.
  void note_hello(const protocol::datagram::Greeting& hello) {
    if (!hello_) hello_ = hello;
  }
  // Drops the request of an engine that was given up.
  void forget_hello(uint64_t engine_id) {
    if (hello_ && hello_->engine.id == engine_id) hello_.reset();
  }

 private:
  Listener(std::shared_ptr<Engine> engine, uint64_t nonce);

  const std::shared_ptr<Engine> engine_;
  const uint64_t nonce_;
  base::Deadline deadline_;
  bool is_polled_ = false;  // the deadline starts with the first poll
  std::optional<protocol::datagram::Greeting> hello_;
  std::unique_ptr<LendingQueue> lending_;  // for the next channel
};

class Connector {
 public:
  // `handle` must have passed protocol::datagram::check_handle().
  static base::Result<std::unique_ptr<Connector>> start(std::shared_ptr<Engine> engine,
                                                        const protocol::datagram::DatagramHandle& handle);
  ~Connector();

  // Returns null until the accept message has arrived.
  base::Result<std::unique_ptr<SendEnd>> poll();
  uint64_t nonce() const { return handle_.nonce; }
  // Called by the engine with its token. Only the first accept message is kept.
  void note_welcome(uint32_t peer, const protocol::datagram::Greeting& welcome) {
    if (!welcome_ && is_calling_ && peer == peer_ && welcome.channel == wire_ &&
        welcome.nonce == handle_.nonce)
      welcome_ = welcome;
  }
  // Returns whether the attempt for this channel has timed out, so that its next poll fails. The caller may
  // never poll again.
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
  GreetingWay last_, next_;  // of the last and of the next connect request
  uint32_t hellos_ = 0;      // number of requests sent
  bool is_calling_ = false;  // it has a channel and sends requests
  bool is_done_ = false;     // the channel belongs to its end
  uint32_t peer_ = 0, channel_ = 0;
  uint16_t wire_ = 0;
  int64_t next_hello_ns_ = 0, delay_ns_ = 0;
  int64_t closed_ns_ = 0;  // when the listener reported that its end is closed already; 0: it has not
  std::optional<protocol::datagram::Greeting> welcome_;
};

}  // namespace verbena::transport::datagram
