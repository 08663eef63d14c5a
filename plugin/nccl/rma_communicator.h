// A group of ranks whose kernels and streams put, signal and read in each other's memory through NCCL's
// device API. connect() returns it; it uses one endpoint (verbena/endpoint.h). Each index of an NCCL context
// uses one lane of the endpoint, so that the operations of one index on one peer take effect in order. A
// strong signal needs exactly that, so every signal is strong.
//
// NCCL cannot be asked to retry an operation. An operation that finds its lane full waits in its request, and
// is posted later, in order. NCCL bounds the number of such requests (rma_abi.h). A request is done when the
// target has the bytes and the signal.
//
// While signals are outstanding on a lane, later operations are collected and then posted together: first
// their bytes, then their signals, with consecutive signals to one word combined into one add. So a device
// with slow atomics does not limit the signal rate. An operation whose bytes contain a word with a pending
// add begins the next batch.
//
// Threads: one thread at a time calls the data functions (put, signal, get, flush, test, progress), which
// also poll. Other threads may create and free contexts and regions at the same time. close() must be called
// after the data thread has stopped.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "nccl/rma_abi.h"
#include "transport/link/nic.h"
#include "transport/one_sided/one_sided_endpoint.h"

namespace verbena::nccl {

using base::Outcome;

class RmaCommunicator;

struct RmaContextOptions {
  uint32_t contexts = 1;
  int traffic_class = -1;
  uint32_t rank_stride = 1;  // only peers whose number is a multiple of it are addressed
};

// The result of createContext. A communicator is a context too, for tables that pass the communicator
// instead.
struct RmaContext {
  RmaCommunicator* communicator = nullptr;
  uint32_t first_lane = 0;
  std::atomic<bool> is_open{true};
  std::atomic<uint32_t> under_way{0};  // number of its outstanding requests; written by the data thread
};

// A region: registered memory of every rank, with the same number on all ranks.
struct RmaRegion {
  RmaCommunicator* communicator = nullptr;
  uint32_t id = 0;
  uint64_t bytes = 0;                  // this rank's memory
  std::atomic<uint32_t> under_way{0};  // number of outstanding operations on it; written by the data thread
};

struct RmaRequest {
  RmaRequest* next = nullptr;
  RmaContext* context = nullptr;  // null: the request is free
  uint64_t target = 0;            // the value of its lane's count_done at which it is done
  verbena::Transfer transfer{};
  verbena::RemoteWord word{};
  uint64_t addend = 0;
  std::array<RmaRegion*, 3> regions{};  // the regions that it uses
  bool is_get = false;
  bool has_transfer = false, has_add = false;  // bytes not yet posted to the endpoint
  bool is_last_of_add = false;                 // number of signals that one add combines
  bool is_done = false, has_failed = false;
  // The signal was rejected after the bytes had been posted. `is_untested`: the call itself returned the
  // error.
  bool has_moved = false, is_refused = false, is_untested = false;
};

// The bytes or the word of a put, signal or get. Offsets count from the start of this rank's or the peer's
// region.
struct RmaBytes {
  uint64_t local_offset = 0;
  RmaRegion* local = nullptr;
  uint64_t bytes = 0;
  uint64_t remote_offset = 0;
  RmaRegion* remote = nullptr;
};
struct RmaSignal {
  uint64_t offset = 0;
  RmaRegion* region = nullptr;  // null: there is none
  uint64_t addend = 0;
};

class RmaCommunicator final : public RmaContext {
 public:
  // Collective.
  static base::Result<std::unique_ptr<RmaCommunicator>> open(bootstrap::Bootstrap bootstrap,
                                                             std::shared_ptr<transport::NicRegistry> nics,
                                                             const transport::Nic& nic, uint64_t nonce,
                                                             bool joins_all);
  // Closes without waiting for peers. Frees the remaining requests, contexts and regions.
  ~RmaCommunicator();

  // --- Collective calls, each with a deadline. Any thread may call them, one at a time.
  base::Result<RmaContext*> create_context(const RmaContextOptions& options);
  // Registers memory by its dma-buf, or by its address if `memory.dmabuf_fd` is -1. All ranks succeed, or all
  // fail.
  base::Result<RmaRegion*> register_memory(const verbena::EndpointMemory& memory);

  // --- Any thread may call these functions.
  void destroy_context(RmaContext* context);
  // Frees a region once no operation on it is outstanding.
  void deregister_memory(RmaRegion* region);
  bool has_error() const { return has_error_.load(std::memory_order_relaxed); }

  // --- For the data thread. `lane` is the lane of the context's index. `is_hinted`: another operation to the
  // same peer follows at once.
  Outcome put(RmaContext& context, uint32_t index, uint32_t peer, const RmaBytes& bytes,
              const RmaSignal& signal, bool is_hinted, void** request);
  Outcome get(RmaContext& context, uint32_t index, uint32_t peer, const RmaBytes& bytes, bool is_hinted,
              void** request);
  // Does nothing: a get is done only when the GPU can see its bytes.
  void flush() { endpoint_->ring(); }
  Outcome test(RmaRequest& request, int* done);
  Outcome progress();

 private:
  static constexpr uint32_t kLanes = 4;
  static constexpr uint32_t kSendDepth = 256;
  static constexpr uint32_t kMaxAdds = 4;    // signals outstanding on a lane before later operations wait
  static constexpr uint32_t kMaxBatch = 64;  // maximum number of operations in a batch

  struct Queue {  // of requests
    RmaRequest *first = nullptr, *last = nullptr;
    bool is_empty() const { return first == nullptr; }
    void append(RmaRequest* request) {
      (first == nullptr ? first : last->next) = request;
      last = request;
      request->next = nullptr;
    }
    RmaRequest* take() {
      RmaRequest* const taken = first;
      first = first->next;
      return taken;
    }
  };
  // Each operation is in one of three lists: waiting; moved (bytes posted, signal not posted); flying.
  struct Lane {
    Queue flying, moved, waiting;
    // Words to which signals in `moved` will be added; consecutive ones differ.
    std::vector<verbena::RemoteWord> signalled;
    uint32_t count_moved = 0;
    uint32_t adds = 0;       // outstanding adds
    bool is_listed = false;  // in waiting_
    void append_moved(RmaRequest* request) {
      moved.append(request);
      ++count_moved;
      note_signal(*request);
    }
    void note_signal(const RmaRequest& request) {
      if (request.has_add && (signalled.empty() || !is_same(signalled.back(), request.word)))
        signalled.push_back(request.word);
    }
    void note_signals_anew() {
      signalled.clear();
      for (const RmaRequest* request = moved.first; request != nullptr; request = request->next)
        note_signal(*request);
    }
    static bool is_same(const verbena::RemoteWord& a, const verbena::RemoteWord& b) {
      return a.region == b.region && a.offset == b.offset;
    }
    bool is_idle() const { return waiting.is_empty() && moved.is_empty() && adds < kMaxAdds; }
  };
  struct Counts {
    uint64_t puts = 0, gets = 0, bytes = 0, signals = 0, waited = 0;
  };

  RmaCommunicator(bootstrap::Bootstrap bootstrap, std::shared_ptr<transport::NicRegistry> nics,
                  const transport::Nic& nic);
  Outcome open_endpoint(const transport::Nic& nic, uint64_t nonce);
  Outcome join_peers(uint32_t stride);
  Outcome prepare_peers(const std::vector<uint32_t>& due);
  base::Result<uint32_t> choose_region_id();
  void release(RmaRegion& region);

  Outcome submit(RmaContext& context, uint32_t index, RmaRequest* request, bool is_hinted, void** out);
  verbena::Posting move_bytes(const Lane& lane, RmaRequest& request);
  verbena::Posting add_moved(Lane& lane);
  bool overlap(const verbena::RemoteWord& word, const verbena::Transfer& bytes) const;
  bool needs_signals(const Lane& lane, const RmaRequest& request) const;
  bool follows_signal(const Lane& lane, const RmaRequest& request) const;
  bool post_batch(Lane& lane);
  void fly(Lane& lane, RmaRequest* request);
  void refuse(Lane& lane, RmaRequest* request);
  RmaRequest* take_request(RmaContext& context);
  void give_back(RmaRequest* request);
  void finish(Lane& lane, RmaRequest* request, bool has_failed);
  void post_waiting();
  void poll();
  uint64_t fail_lane(Lane& lane);
  void tell_loss(uint32_t peer, uint64_t lost);
  void sweep();

  std::shared_ptr<transport::NicRegistry> nics_;
  const std::string device_;
  const uint32_t rank_, count_ranks_;
  bool asks_agents_ = false;  // some device of the group has no RDMA atomics
  std::unique_ptr<transport::OneSidedEndpoint> endpoint_;

  std::mutex mutex_;  // guards the collective calls and the objects that they create
  bootstrap::Bootstrap bootstrap_;
  std::vector<bool> is_joined_;
  std::deque<RmaContext> contexts_;
  uint32_t next_lane_ = 0;
  std::vector<std::unique_ptr<RmaRegion>> regions_;  // by id; null: free
  // Closed regions, which are freed when none of their operations is outstanding.
  std::vector<RmaRegion*> closing_;
  std::atomic<bool> has_closing_{false};  // such objects exist, or a context was closed

  std::atomic<bool> has_error_{false};
  std::vector<Lane> lanes_;        // by peer, lane
  std::vector<uint32_t> waiting_;  // lanes with requests that wait
  std::vector<bool> is_lost_;      // by peer: the loss was reported
  std::deque<std::vector<RmaRequest>> pool_;
  RmaRequest* free_ = nullptr;
  uint32_t early_tests_ = 0;                              // number of tests of requests that were not done
  const RmaRequest* last_early_ = nullptr;                // the request of the last such test
  std::array<verbena::EndpointCompletion, 64> polled_{};  // completions of one poll
  Counts counts_;
};

}  // namespace verbena::nccl
