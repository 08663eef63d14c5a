// The resources of an engine on one rail, independent of the number of peers: queue pairs, receive queues,
// completion queues, and the memory of sent headers. One thread at a time uses a rail.
//
// There are several receive queues, because a packet that finds no receive is dropped silently. With separate
// queues, data cannot use up the receives of acknowledgements, and eager packets cannot use up those of
// granted packets. If there are small-message buffers, they use the last of the queue pairs for granted
// packets.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "protocol/datagram/departures.h"
#include "protocol/datagram/greeting.h"
#include "transport/datagram/page_pool.h"
#include "verbs/datagram_queues.h"
#include "verbs/device.h"
#include "verbs/near_memory.h"
#include "verbs/queues.h"

namespace verbena::transport::datagram {

// A queue pair, the headers of its outstanding datagrams, and the owner of each datagram.
class SendQueue {
 public:
  static constexpr uint32_t kDepth = 128;

  SendQueue() = default;
  SendQueue(verbs::DatagramPair pair, std::byte* headers, uint32_t header_bytes, uint32_t header_key)
      : pair_(std::move(pair)), headers_(headers), header_bytes_(header_bytes), header_key_(header_key) {}

  uint32_t number() const { return pair_.number(); }
  uint32_t room() const { return kDepth - (added_ - departures_.count()); }
  // Returns the number of datagrams added so far, wrapping.
  uint32_t added() const { return added_; }
  bool has_left(uint32_t added) const { return static_cast<int32_t>(departures_.count() - added) >= 0; }
  const protocol::datagram::Departures& departures() const { return departures_; }
  // Returns the memory for the next datagram's header. Call it only if there is space.
  std::byte* next_header() { return headers_ + size_t{added_ % kDepth} * header_bytes_; }
  // Adds a datagram, which is posted by flush() at the latest. For `owner` see retire(). If posting fails,
  // the queue pair is marked as broken.
  void add(verbs::Datagram datagram, uint32_t owner);
  void flush();
  // Processes a completion of this queue pair. Calls done(owner) for each datagram that was sent.
  template <typename Done>
  void retire(uint64_t cookie, protocol::datagram::Stamp when, Done&& done) {
    const auto last = static_cast<uint32_t>(cookie);
    if (last - departures_.count() > added_ - departures_.count()) return;  // from before a reset
    pair_.retire(cookie);
    leave_until(last, when, done);
  }
  // Returns the owner of the datagram to which this completion belongs.
  uint32_t owner_of(uint64_t cookie) const { return owners_[(static_cast<uint32_t>(cookie) - 1) % kDepth]; }
  // Returns whether datagrams of these owners are outstanding.
  bool holds(uint32_t first_owner, uint32_t owners) const;

  // --- For a queue pair that is broken: an operation has failed or takes too long.
  bool is_broken() const { return is_broken_; }
  void set_broken() { is_broken_ = true; }
  bool is_ready() const { return pair_.is_ready(); }
  bool is_empty() const { return departures_.count() == added_; }
  // Makes the outstanding datagrams complete soon.
  base::Outcome stop() { return pair_.stop(); }
  // Resets the queue pair. Outstanding datagrams are lost. Even if the call fails, they no longer read
  // memory.
  template <typename Done>
  base::Outcome restart(protocol::datagram::Stamp when, Done&& done) {
    batched_ = 0;
    base::Outcome outcome = pair_.restart(added_);
    if (outcome) is_broken_ = false;
    if (!outcome) pair_.destroy();
    leave_until(added_, when, done);
    return outcome;
  }
  // Gives up the queue pair for good.
  template <typename Done>
  void destroy(protocol::datagram::Stamp when, Done&& done) {
    is_broken_ = true;
    batched_ = 0;
    pair_.destroy();
    leave_until(added_, when, done);
  }

 private:
  template <typename Done>
  void leave_until(uint32_t last, protocol::datagram::Stamp when, Done&& done) {
    while (departures_.count() != last) {
      const uint32_t owner = owners_[departures_.count() % kDepth];
      departures_.note(when);
      done(owner);
    }
  }

  static constexpr uint32_t kBatch = 16;

  verbs::DatagramPair pair_;
  std::byte* headers_ = nullptr;
  uint32_t header_bytes_ = 0, header_key_ = 0;
  uint32_t added_ = 0;  // wraps
  protocol::datagram::Departures departures_;
  std::array<uint32_t, kDepth> owners_{};
  std::array<verbs::Datagram, kBatch> batch_{};
  uint32_t batched_ = 0;
  bool is_broken_ = false;
};

class Rail {
 public:
  // Marks of queue pairs, below kPairs. The queue pairs for granted packets come last.
  static constexpr uint32_t kControlMark = 0, kEagerMark = 1, kFirstGrantedMark = 2;
  static constexpr uint32_t kPairs = kFirstGrantedMark + protocol::datagram::kGrantedPairs;
  static constexpr uint32_t kControlBuffers = 512;
  static constexpr uint32_t kMaxControlBytes = 640;  // of a packet without data
  static_assert(kMaxControlBytes >= protocol::datagram::kMaxGreetingBytes);

  // The cookie of a receive names the page, its queue, and how often it had been posted.
  static uint64_t make_cookie(protocol::datagram::PageQueue queue, uint32_t page, uint8_t posts) {
    return uint64_t{posts} << 40 | static_cast<uint64_t>(queue) << 32 | page;
  }
  static uint8_t posts_of(uint64_t cookie) { return static_cast<uint8_t>(cookie >> 40); }
  static protocol::datagram::PageQueue queue_of(uint64_t cookie) {
    return static_cast<protocol::datagram::PageQueue>(cookie >> 32 & 3);
  }

  // Returns an error if the device does not support datagrams. Creates nothing.
  static base::Outcome check(const verbs::Device& device);
  // If the device has failed, the rail has no queue pairs and is given up.
  static base::Result<std::unique_ptr<Rail>> create(verbs::Device& device, const PagePool& pool,
                                                    uint32_t queue_key);
  Rail(const Rail&) = delete;
  Rail& operator=(const Rail&) = delete;

  verbs::Device& device() const { return device_; }
  bool is_ethernet() const { return is_ethernet_; }
  uint32_t page_key(bool is_short) const { return (is_short ? short_region_ : pool_region_).local_key(); }
  // Returns the description of the rail that is sent to peers.
  protocol::datagram::EngineRail describe() const;
  bool has_room() const;
  bool has_failed_queue() const {
    return !is_given_up_ &&
           (sends.has_failed() || control_receives.has_failed() || page_receives.has_failed());
  }
  // Returns false if a queue pair is broken.
  bool flush();
  // A rail that was given up is never used again.
  bool is_given_up() const { return is_given_up_; }
  void set_given_up() { is_given_up_ = true; }
  bool is_usable() const { return !is_given_up_ && device_.is_healthy(); }
  base::Outcome post_page(protocol::datagram::PageQueue queue, const PagePool& pool,
                          std::span<const uint32_t> pages);
  base::Outcome post_control(uint32_t buffer);
  std::span<const uint8_t> control_bytes(uint32_t buffer, uint32_t length_bytes) const;
  SendQueue* find_pair(uint64_t cookie);
  SendQueue& pair(uint32_t mark) {
    return mark == kControlMark ? control : mark == kEagerMark ? eager : granted[mark - kFirstGrantedMark];
  }

 private:
  explicit Rail(verbs::Device& device)
      : device_(device), is_ethernet_(device.local_address().port.link_layer == verbs::kEthernet) {}
  base::Outcome prepare(const PagePool& pool, uint32_t queue_key);
  base::Result<SendQueue> make_pair(uint32_t mark, verbs::CompletionQueue& receives,
                                    verbs::SharedReceiveQueue& queue, uint32_t queue_key);

  // Queue pairs are destroyed before their queues, and queues before the memory.
  verbs::Device& device_;
  const bool is_ethernet_;
  bool is_given_up_ = false;
  verbs::NearMemory memory_;      // control buffers, then headers
  std::byte* headers_ = nullptr;  // headers not assigned to a queue pair yet
  uint32_t control_bytes_ = 0;    // length of a control buffer
  verbs::MemoryRegion region_, pool_region_, short_region_, lines_region_;
  std::byte* waste_ = nullptr;  // receives the part of a datagram that no valid packet has
  uint32_t waste_bytes_ = 0;    // 0 if datagrams cannot be longer than an MTU

 public:
  uint32_t mendings = 0;  // number of resets since a packet was last sent
  verbs::CompletionQueue sends, control_receives, page_receives;
  protocol::datagram::Stamp polled_sends = 0;  // time of the last poll

 private:
  verbs::SharedReceiveQueue control_queue_, granted_queue_, eager_queue_, short_queue_;

 public:
  SendQueue control, eager;
  // The last one also carries short messages.
  std::array<SendQueue, protocol::datagram::kGrantedPairs> granted;
};

}  // namespace verbena::transport::datagram
