// Flushes the data of gets to GPU memory. When the NIC reports a get as complete, its data may still be on
// the way to the GPU, because the completion is written to host memory over another route. A READ of one byte
// of the GPU memory, which the NIC requests from itself, returns after all earlier writes. Completions of
// such gets wait here for this READ. Later completions wait behind them, so that each lane's completions stay
// in order. A queue pair that fails is created again, and its READ is repeated. Only the driver calls it.
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

// Memory that a get has written, with the key by which this rank's NIC on that rail accesses it.
struct PushedPlace {
  const void* address = nullptr;
  uint32_t key = 0;
  uint32_t rail = 0;
};

class GetPush {
 public:
  static constexpr uint32_t kSendDepth = 16;

  // Uses one queue pair for each rail, connected to itself. It is created with the first get, because a port
  // may not reach its own address. The cookie of a request is the rail's entry of `cookies`.
  static base::Result<std::unique_ptr<GetPush>> create(std::span<verbs::Device* const> devices,
                                                       std::span<verbs::CompletionQueue> completions,
                                                       std::vector<uint64_t> cookies);
  ~GetPush();

  bool is_empty() const { return held_.empty(); }
  // `place` is memory that a get of this completion, or an earlier one, has written; empty if there was no
  // such get.
  void hold(const EndpointCompletion& completion, const std::optional<PushedPlace>& place) {
    held_.push_back({completion, place});
  }
  // Takes a completion of that rail's queue pair.
  void take_completion(uint32_t rail, const verbs::Completion& completion);
  // Reports no further completions of this peer.
  void drop(uint32_t peer);
  // Fills `out` and returns the number of completions. Posts the next READs.
  uint32_t release(std::span<EndpointCompletion> out);
  // Returns why no completions can be reported any more, or an empty string.
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
    // Declared before its registration, which is declared before the queue pair.
    std::unique_ptr<uint64_t> word;
    verbs::MemoryRegion region;
    verbs::QueuePair pair;
    std::optional<PushedPlace> asked;  // of the outstanding READ, or of the READ to be repeated
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
  size_t released_ = 0;  // number of completions, from the front, that may be reported
  // Number of completions after those that wait for the outstanding READs; 0: there are none.
  size_t covered_ = 0;
  std::string failure_;
};

}  // namespace verbena::transport
