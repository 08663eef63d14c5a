// Copies pages to GPU memory, which the CPU cannot access, by RDMA writes of a rail's queue pair that is
// connected to itself (link/loopback.h). The writes may use any working rail and complete in any order. This
// is safe for NCCL's LL128, where the last bytes of a line mark it as complete, because no line is split
// between two packets (Engine::prepare()). One thread at a time uses a placer.
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
  // All three arguments must outlive the placer.
  Placer(const Nic& nic, PagePool& pool, std::span<const std::unique_ptr<Rail>> rails);

  bool is_idle() const { return under_way_.empty() && waiting_ == 0 && flushes_.empty(); }
  // Returns whether data that NCCL receives into GPU memory must be flushed. A real NIC reports a write
  // before the GPU sees its data.
  bool has_to_flush() const { return has_to_flush_ && written_rails_ != 0; }

  // Copies the bytes of a message's page to `target`, which lies in `memory`.
  void add(uint32_t page, uint32_t message, std::byte* target, uint32_t length_bytes,
           const Registration* memory);
  // `request` is open. It is done once the GPU sees all data that was copied before.
  void flush(ChannelFlush* request);
  // Starts as many copies as the rails have space for. Calls done(message) for each page that was copied and
  // is free now. Returns false, with the cause, if the memory or the device has failed; find_failed() then
  // returns whose copy failed.
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
  // The message or the flush that cannot be completed. If both are unset, the device has failed for
  // all messages.
  struct Failed {
    uint32_t message = protocol::datagram::kNoObject;
    const ChannelFlush* flush = nullptr;
  };
  Failed find_failed() const;
  // These rails no longer work. Their outstanding copies begin again on other rails.
  void leave_rails(uint32_t rails, int64_t now_ns);
  // After the call returns, no copy for these messages is outstanding, and their pages are free.
  void drop(uint32_t first_message, uint32_t messages, const MessageEnd* flushes_owner);

 private:
  struct Placement {
    std::byte* target = nullptr;
    const Registration* memory = nullptr;
    uint32_t length_bytes = 0;
    uint32_t message = 0;
    uint32_t rail = 0;         // valid once the copy is outstanding
    uint32_t outstanding = 0;  // number of writes; the loopback decrements it
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
  std::vector<uint32_t> under_way_;    // pages being copied, in any order
  std::vector<uint32_t> queue_;        // a ring of the pages that wait, with capacity for all
  uint32_t first_ = 0, waiting_ = 0;   // of the ring
  std::vector<ChannelFlush*> flushes_;
  uint32_t written_rails_ = 0, turn_ = 0;
  std::array<int64_t, verbs::kMaxRails> left_ns_{};  // when the rail last stopped working
  std::unique_ptr<LoopbackUser> loopback_;           // decrements the counters in all members above
};

}  // namespace verbena::transport::datagram
