// Pages on their way into memory of GPUs, which the CPU does not reach: RDMA writes over a queue pair of a
// rail to itself (link/loopback.h). In any order, over any rail that works: no line of NCCL's LL128, whose
// last bytes say that it is there, lies in two packets (Engine::prepare()). One thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "transport/datagram/channel.h"
#include "transport/datagram/page_pool.h"
#include "transport/datagram/rail.h"
#include "transport/link/loopback.h"

namespace verbena::transport::datagram {

class Placer {
 public:
  // All three outlive it.
  Placer(const Nic& nic, PagePool& pool, std::span<const std::unique_ptr<Rail>> rails);

  bool is_idle() const { return under_way_.empty() && waiting_ == 0 && flushes_.empty(); }
  // Whether what NCCL receives into memory of a GPU has to be flushed: a real NIC says that it has written
  // before the GPU sees it.
  bool has_to_flush() const { return has_to_flush_ && written_rails_ != 0; }

  // The bytes of a message's page to `target`, which lies in `memory`.
  void add(uint32_t page, uint32_t message, std::byte* target, uint32_t length_bytes,
           const Registration* memory);
  // `request` is open, and done once the GPU sees all that was placed before.
  void flush(ChannelFlush* request);
  // Begins what the rails have room for; done(message) for each page that is in its place and nobody's now.
  // False, with the cause: memory or device have failed; find_failed() says whose.
  template <typename Done>
  bool progress(uint32_t live_rails, int64_t now_ns, std::string* failure, const Done& done) {
    if (is_idle()) return true;
    if (!loopback_->poll(failure)) return false;
    for (size_t i = 0; i < under_way_.size();) {
      const uint32_t page = under_way_[i];
      if (placements_[page].outstanding != 0) {
        ++i;
        continue;
      }
      under_way_[i] = under_way_.back();
      under_way_.pop_back();
      pool_.put_back(page);
      done(placements_[page].message);
    }
    begin(live_rails);
    progress_flushes(live_rails, now_ns);
    return true;
  }
  // The message whose page cannot be placed, or whose flush; neither: the device has failed for all.
  struct Failed {
    uint32_t message = protocol::datagram::kNoObject;
    const ChannelFlush* flush = nullptr;
  };
  Failed find_failed() const;
  // Those rails do not work any more: what is under way there begins again on others.
  void leave_rails(uint32_t rails, int64_t now_ns);
  // Nothing is written for them any more once this returns; their pages are nobody's.
  void drop(uint32_t first_message, uint32_t messages, const MessageEnd* flushes_owner);

 private:
  struct Placement {
    std::byte* target = nullptr;
    const Registration* memory = nullptr;
    uint32_t length_bytes = 0;
    uint32_t message = 0;
    uint32_t rail = 0;         // once it is under way
    uint32_t outstanding = 0;  // writes: the loopback counts it down
  };

  void wait(uint32_t page) { queue_[(first_ + waiting_++) % queue_.size()] = page; }
  uint32_t take_waiting() {
    const uint32_t page = queue_[first_];
    first_ = (first_ + 1) % static_cast<uint32_t>(queue_.size());
    --waiting_;
    return page;
  }
  void begin(uint32_t live_rails);
  void progress_flushes(uint32_t live_rails, int64_t now_ns);
  void restart();

  const Nic& nic_;
  PagePool& pool_;
  const std::span<const std::unique_ptr<Rail>> rails_;
  const bool has_to_flush_;
  std::vector<Placement> placements_;  // by page
  std::vector<uint32_t> under_way_;    // pages, in no order
  std::vector<uint32_t> queue_;        // a ring of those that wait, with room for all
  uint32_t first_ = 0, waiting_ = 0;   // of it
  std::vector<ChannelFlush*> flushes_;
  uint32_t written_rails_ = 0, turn_ = 0;
  std::array<int64_t, verbs::kMaxRails> left_ns_{};  // when the rail last ceased to work
  std::unique_ptr<LoopbackUser> loopback_;           // counts down in all of these
};

}  // namespace verbena::transport::datagram
