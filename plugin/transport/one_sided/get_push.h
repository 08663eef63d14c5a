// What a get brought into GPU memory may still be on its way there when the NIC says that the get is done:
// the completion lies in host memory, and took another way. A READ of one byte of that memory, which the NIC
// asks of itself, comes back behind all writes before it. Completions that tell of such gets wait here for
// theirs, and whatever is told later waits behind them, so that each lane is told of in order. A queue pair
// that fails is made anew, and its READ asked for again. The driver's.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "verbena/endpoint.h"
#include "verbs/queues.h"

namespace verbena::transport {

// Memory that a get went to, as this rank's own NIC on that rail reaches it.
struct PushedPlace {
  const void* address = nullptr;
  uint32_t key = 0;
  uint32_t rail = 0;
};

class GetPush {
 public:
  static constexpr uint32_t kSendDepth = 16;

  // Over a queue pair a rail that is connected to itself, made for the first get: a port may not reach its
  // own address. Its requests' cookie: the rail's of `cookies`.
  static base::Result<std::unique_ptr<GetPush>> create(std::span<verbs::Device* const> devices,
                                                       std::span<verbs::CompletionQueue> completions,
                                                       std::vector<uint64_t> cookies);
  ~GetPush();

  bool is_empty() const { return held_.empty(); }
  // `place`: memory that a get in it, or before it, went to; none if there was no such get.
  void hold(const EndpointCompletion& completion, const std::optional<PushedPlace>& place) {
    held_.push_back({completion, place});
  }
  // A completion of that rail's queue pair.
  void take_completion(uint32_t rail, const verbs::Completion& completion);
  // Nothing more is told of this peer.
  void drop(uint32_t peer);
  // How many of `out` were filled; asks for the next READs.
  uint32_t release(std::span<EndpointCompletion> out);
  // Why nothing can be told any more; empty: it can.
  const std::string& failure() const { return failure_; }

 private:
  struct Held {
    EndpointCompletion completion;
    std::optional<PushedPlace> place;
    bool is_dropped = false;
  };
  struct Rail {
    verbs::Device* device;
    verbs::CompletionQueue* completions;
    uint64_t cookie;
    std::unique_ptr<uint64_t> word;  // before its registration, and that before the pair
    verbs::MemoryRegion region;
    verbs::QueuePair pair;
    std::optional<PushedPlace> asked;  // of the READ under way, or that has to be asked for again
    bool is_under_way = false;
    int64_t posted_at_ns = 0;
    int64_t failed_since_ns = 0, retry_at_ns = 0;  // 0: it works
  };
  static bool connect(Rail& rail);
  void ask(Rail& rail);
  void look_for_silence(Rail& rail);
  void fail(Rail& rail, const char* what, bool is_final);
  void repair(Rail& rail);
  bool begin_batch();

  std::vector<Rail> rails_;
  std::deque<Held> held_;
  size_t released_ = 0;  // of them, from the front: may be told
  size_t covered_ = 0;   // behind those: wait for the READs under way; 0: there are none
  std::string failure_;
};

}  // namespace verbena::transport
