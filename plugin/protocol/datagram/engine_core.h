// One end of reliable messages over unreliable datagrams. Pure. It decides which packets are sent when and on
// which path, which packets count as lost, which messages get grants, and how pages are used. send_side.h
// sends messages, receive_side.h receives them, engine_shared.h has the data that both need. This file has
// peers, and the steps of a pass.
//
// Pure: no clock, verbs, CUDA or socket. All actions are calls of Port, which owns the core:
// transport/datagram/engine.h over verbs, or tests/protocol/datagram/simulation over a simulated network with
// a seed. Functions that a port offers:
//
//   now_ns()                      the time, read once in a pass
//   rooms() -> uint32_t           a bit for each rail whose send queue has space for a packet
//   live_rails() -> uint32_t      a bit for each rail that works
//   post_data(peer, OutPacket) -> uint32_t
//                                 sends a packet on a rail with space; without a message: only the header,
//                                 for kNoChannel. The result is the argument of has_left()
//   has_left(uint32_t, Stamp&)    returns whether that packet has left its send queue and, if known, the
//                                 earliest possible time; true for a rail that does not work
//   has_room_for_ack(path) -> bool
//   post_ack(peer, path, Ack)     only if there is space
//   post_request(peer, path, wishes)    may fail; it is sent again
//   post_pages(rail, queue, count)      posts idle pages to a receive queue
//   put_back(page)                the page is idle
//   copy_page(message, page, offset, length_bytes) -> bool
//                                 copies a page into its receive. True: the copy is complete. False: the page
//                                 is being copied, and becomes idle at note_moved()
//   note_sent(message)            the whole message was acknowledged
//   note_received(message)        the whole message is at its destination, or on loan to a kernel
//   note_silent(peer)             the peer has not answered for too long
//   note_stuck(peer, message)     the peer answers, but a packet for which it has space does not arrive;
//                                 kNoObject: a packet without a message
//
// One thread at a time uses a core. No function allocates unless more peers, channels and messages are open
// than ever before.
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
  // The port must outlive the core.
  EngineCore(Port& port, const EngineOptions& options)
      : Sending(shared_), Receiving(shared_, options), shared_(port, options) {}

  // --- Peers and channels. These functions may allocate.

  // Adds a peer. `paths` has a bit for each path to it, see set_paths(). `data_bytes` is the number of bytes
  // of a message in a packet that is not the last; the peer uses the same number. The number of the new peer
  // is `least` or greater.
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
  // `paths` has a bit for each path that this end uses in turn. `reachable` also contains the paths that
  // share their address handles; the peer may send on them, and acknowledgements may return on them.
  void set_paths(uint32_t id, uint32_t paths, uint32_t reachable) {
    shared_.peers[id].paths = PathTable(paths, shared_.options.random + id * 7);
    shared_.peers[id].reachable = reachable;
  }
  // The peer's channels must be closed.
  void remove_peer(uint32_t id) {
    Peer& peer = shared_.peers[id];
    Sending::drop_peer(id);
    Receiving::drop_ack(id);
    shared_.wheel.remove(id, shared_.timers());
    peer = Peer{};
    shared_.peers.give_back(id);
  }
  // Stops the traffic with a peer: nothing is sent to it or expected from it, and other peers get the pages
  // that it held. Its messages stay open.
  void mute_peer(uint32_t id) {
    Peer& peer = shared_.peers[id];
    peer.is_gone = true;
    Sending::drop_peer(id);
    Receiving::drop_grants(peer);
  }
  // Restarts the traffic with a peer that was muted before anything was sent to it.
  void unmute_peer(uint32_t id) {
    shared_.peers[id].is_gone = false;
    shared_.peers[id].heard_ns = shared_.port.now_ns();
  }

  // --- A pass.

  // `now_ns` is the port's time, and the same for all calls of a pass.
  void tick(int64_t now_ns) {
    shared_.wheel.advance(now_ns, shared_.timers(),
                          [&](uint32_t id, int64_t at_ns) { on_timer(id, at_ns, now_ns); });
    Receiving::audit(now_ns);
  }
  // Sends grants, then acknowledgements, then packets, as far as there is space.
  void pump() {
    Receiving::pump_acks();
    Sending::pump_packets();
  }
  int64_t next_timer_ns() const {
    return std::min(shared_.wheel.find_next_ns(), Receiving::grants().audit_ns());
  }

  // --- For the port, for diagnosis and for tests.
  const EngineOptions& options() const { return shared_.options; }
  Peer& peer(uint32_t id) { return shared_.peers[id]; }
  const Peer& peer(uint32_t id) const { return shared_.peers[id]; }
  uint32_t peers() const { return shared_.peers.used(); }
  const EngineStatistics& statistics() const { return shared_.statistics; }
  uint32_t pick_control_path(const Peer& peer) { return shared_.pick_control_path(peer); }
  // Counts a datagram that belongs to no peer, or cannot be received.
  void count_stray() { ++shared_.statistics.strays; }

 private:
  void on_timer(uint32_t id, int64_t filed_ns, int64_t now_ns) {
    Peer& peer = shared_.peers[id];
    if (peer.is_gone || !peer.is_open) return;
    if (peer.ack_ns <= now_ns) {  // FAULT(acknowledgement_is_never_due)
      peer.ack_ns = kNeverNs;
      Receiving::must_ack(id);
    }
    Sending::on_timer(id, filed_ns, now_ns);
  }

  EngineShared<Port> shared_;
};

}  // namespace verbena::protocol::datagram
