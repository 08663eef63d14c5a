// Messages of any length between any two ranks, each with a tag. Messages of one rank with one tag arrive in
// the order in which it sent them.
//
// The first message to a rank connects a link to it, which carries only the messages of the rank that
// connected: two ranks that send to each other at the same time use two links. The connecting rank
// authenticates itself with the job's key, or with the secret in the address that the other rank published. A
// send that waits for its receiver also receives, so two ranks may send long messages to each other at the
// same time.
//
// Any thread may call send() and receive().
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/socket_address.h"
#include "base/status.h"
#include "bootstrap/callers.h"
#include "bootstrap/frame_link.h"

namespace verbena::bootstrap {

// Publish it only over a channel that unauthenticated processes can neither read nor write.
struct PairAddress {
  uint64_t magic = 0;
  uint32_t version = 0;
  uint32_t rank = 0;
  base::SocketAddress address{};
  Nonce nonce{};   // sent over the network
  Nonce secret{};  // never sent, only proven; zeros without libcrypto
  uint8_t reserved[24] = {};
};
static_assert(sizeof(PairAddress) == 128);

class PairLinks {
 public:
  // Listens at `address` or, if it is empty, at the interface that VERBENA_SOCKET_IFNAME selects.
  static base::Result<std::unique_ptr<PairLinks>> open(uint32_t rank, uint32_t count_ranks,
                                                       const base::SocketAddress& address);

  const PairAddress& address() const { return address_; }
  // Sets the addresses of all ranks, by rank. Call it before the first message.
  base::Outcome learn(std::span<const PairAddress> all);

  // Sends a message. Returns when the operating system has taken all of it.
  base::Outcome send(uint32_t to, uint64_t tag, std::span<const std::byte> bytes, int64_t timeout_ms);
  // Receives the next message. Fails with kRemote if the peer has left, and all messages that it sent with
  // this tag have been received.
  base::Result<std::vector<std::byte>> receive(uint32_t from, uint64_t tag, int64_t timeout_ms);

 private:
  struct Peer {
    PairAddress address;
    std::unique_ptr<FrameLink> out;     // carries our messages
    std::unique_ptr<FrameLink> in;      // carries the peer's
    std::string unreachable;            // why the link `out` cannot be made
    std::vector<std::byte> incomplete;  // the parts so far of the message that is arriving
    std::map<uint64_t, std::deque<std::vector<std::byte>>> arrived;  // by tag

    bool is_lost() const { return !unreachable.empty() || (out != nullptr && out->is_closed()); }
    const std::string& problem() const { return unreachable.empty() ? out->problem() : unreachable; }
  };

  PairLinks(const PairAddress& address, uint32_t count_ranks, base::Listener listener, Proof proof);
  base::Outcome check(uint32_t peer) const;
  void connect(Peer& peer);
  void advance();
  void take_arrivals(Peer& peer);
  // Waits until is_done() is true, or fails if has_left() is true first. Calls both with the mutex held.
  template <typename IsDone, typename HasLeft>
  base::Outcome wait(uint32_t peer, const char* what, int64_t timeout_ms, const IsDone& is_done,
                     const HasLeft& has_left);

  const PairAddress address_;
  std::atomic<uint32_t> waiting_{0};  // number of waiting threads
  std::mutex mutex_;                  // guards all below
  Callers callers_;
  std::vector<Peer> peers_;
};

}  // namespace verbena::bootstrap
