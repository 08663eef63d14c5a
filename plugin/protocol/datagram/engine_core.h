// One end of reliable messages over unreliable datagrams, pure: what leaves when and on which path, what
// counts as lost, what is granted to whom, where pages go. send_side.h has the sending of a message,
// receive_side.h its receiving, engine_shared.h what both know; here are peers, and a pass.
//
// Pure: no clock, verbs, CUDA or socket; what happens is asked of Port, which has the core:
// transport/datagram/engine.h over verbs, tests/protocol/datagram/simulation over a network that a seed
// decides. What a port has to offer:
//
//   now_ns()                      the time, read once a pass
//   rooms() -> uint32_t           a bit for each rail whose send queue takes another packet
//   live_rails() -> uint32_t      a bit for each rail that works
//   post_data(peer, OutPacket) -> uint32_t
//                                 on a rail that has room; of no message: the header alone, for kNoChannel.
//                                 What it returns is for has_left()
//   has_left(uint32_t, Stamp&)    whether that packet has left its send queue, and, if it is known, when at
//                                 the earliest; true of a rail that does not work
//   has_room_for_ack(path) -> bool
//   post_ack(peer, path, Ack)     there is room
//   post_request(peer, path, wishes)    may fail: it is sent again
//   post_pages(rail, queue, count)      idle pages to a receive queue
//   put_back(page)                it is idle
//   copy_page(message, page, offset, length_bytes) -> bool
//                                 copies a page into its receive. True: it is done; false: the page is being
//                                 copied, and idle at note_moved()
//   note_sent(message)            all of it is acknowledged
//   note_received(message)        all of it is in its place, or lent
//   note_silent(peer)             it owes an answer for too long
//   note_stuck(peer, message)     it answers, but a packet for which it has room does not arrive for so long;
//                                 kNoObject: not even one of no message
//
// One thread at a time. No function allocates while no more peers, channels and messages are open than once
// were.
#pragma once

#include <algorithm>
#include <cstdint>

#include "protocol/datagram/receive_side.h"
#include "protocol/datagram/send_side.h"

namespace verbena::protocol::datagram {

template <typename Port>
class EngineCore : public SendSide<Port>, public ReceiveSide<Port> {
  using Sending = SendSide<Port>;
  using Receiving = ReceiveSide<Port>;

 public:
  // The port outlives it.
  EngineCore(Port& port, const EngineOptions& options)
      : Sending(shared_), Receiving(shared_, options), shared_(port, options) {}

  // --- Peers and channels. These may take memory.

  // `paths`: a bit for each that leads to it, see set_paths(). `data_bytes`: of a message in a packet that is
  // not its last; the peer says the same. Its number is `least` or greater.
  uint32_t add_peer(uint32_t paths, uint32_t data_bytes, uint32_t least = 0) {
    const uint32_t id = shared_.peers.take_from(least);
    Peer& peer = shared_.peers[id];
    peer = Peer{};
    peer.is_open = true;
    peer.data_bytes = data_bytes;
    peer.eager_limit = shared_.options.eager_packets;
    peer.loss = LossTimes(shared_.options.loss);
    peer.guard = SendGuard(shared_.options.window_packets);
    peer.heard_ns = shared_.port.now_ns();
    set_paths(id, paths, paths);
    return id;
  }
  // `paths`: a bit for each that this end takes in turn. `reachable`: those, and others over the same address
  // handles, by which the peer may send and an acknowledgement may return.
  void set_paths(uint32_t id, uint32_t paths, uint32_t reachable) {
    shared_.peers[id].paths = PathTable(paths, shared_.options.random + id * 7);
    shared_.peers[id].reachable = reachable;
  }
  // Its channels are closed.
  void remove_peer(uint32_t id) {
    Peer& peer = shared_.peers[id];
    Sending::drop_peer(id);
    Receiving::drop_ack(id);
    shared_.wheel.remove(id, shared_.timers());
    peer = Peer{};
    shared_.peers.give_back(id);
  }
  // Nothing is sent to it any more, nothing of it is awaited, and others have what it held. What is open
  // stays open.
  void mute_peer(uint32_t id) {
    Peer& peer = shared_.peers[id];
    peer.is_gone = true;
    Sending::drop_peer(id);
    Receiving::drop_grants(peer);
  }
  // A peer that was muted before anything was sent to it: it is tried again.
  void unmute_peer(uint32_t id) {
    shared_.peers[id].is_gone = false;
    shared_.peers[id].heard_ns = shared_.port.now_ns();
  }

  // --- A pass.

  // `now_ns` is the port's, and the same for all calls of a pass.
  void tick(int64_t now_ns) {
    shared_.wheel.advance(now_ns, shared_.timers(),
                          [&](uint32_t id, int64_t at_ns) { on_timer(id, at_ns, now_ns); });
    Receiving::audit(now_ns);
  }
  // Grants, then acknowledgements, then packets, as far as there is room.
  void pump() {
    Receiving::pump_acks();
    Sending::pump_packets();
  }
  int64_t next_timer_ns() const {
    return std::min(shared_.wheel.find_next_ns(), Receiving::grants().audit_ns());
  }

  // --- For the port, for people and for tests.
  const EngineOptions& options() const { return shared_.options; }
  Peer& peer(uint32_t id) { return shared_.peers[id]; }
  const Peer& peer(uint32_t id) const { return shared_.peers[id]; }
  uint32_t peers() const { return shared_.peers.used(); }
  const EngineStatistics& statistics() const { return shared_.statistics; }
  uint32_t pick_control_path(const Peer& peer) { return shared_.pick_control_path(peer); }
  // A datagram of no peer, or one that cannot be received.
  void count_stray() { ++shared_.statistics.strays; }

 private:
  void on_timer(uint32_t id, int64_t filed_ns, int64_t now_ns) {
    Peer& peer = shared_.peers[id];
    if (peer.is_gone || !peer.is_open) return;
    if (peer.ack_ns <= now_ns) {
      peer.ack_ns = kNeverNs;
      Receiving::must_ack(id);
    }
    Sending::on_timer(id, filed_ns, now_ns);
  }

  EngineShared<Port> shared_;
};

}  // namespace verbena::protocol::datagram
