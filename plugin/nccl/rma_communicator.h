// A group of ranks whose kernels and streams put, signal and read in each other's memory through NCCL: what
// connect gives, over one endpoint (verbena/endpoint.h). A context of NCCL's uses one lane of it for each of
// its indices, so that what is asked of one peer by one index takes effect there in order; that is all that a
// strong signal needs, and every signal is one.
//
// NCCL knows no "later": an operation that finds its lane full waits here, in its request, and leaves in
// order. How many wait NCCL bounds (rma_abi.h). `done` is told when the target has the bytes and the signal.
//
// While some signals are under way on a lane, later operations wait here too, and leave together: their bytes
// first, then their signals, those that follow each other to one word as one. So a device that adds slowly
// does not bound how many signals a second there are. Bytes from or to a word that is to be added to before
// begin the next such run.
//
// Threads: the data functions (put, signal, get, flush, test, progress) and the polling in them belong to one
// thread at a time. Contexts and regions are made and given back by others, also meanwhile; closing by
// whoever has stopped the data thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
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
  uint32_t rank_stride = 1;  // only peers at multiples of it are addressed
};

// What createContext gives. A communicator is one itself, for tables that pass it instead.
struct RmaContext {
  RmaCommunicator* communicator = nullptr;
  uint32_t first_lane = 0;
  std::atomic<bool> is_open{true};
  std::atomic<uint32_t> under_way{0};  // its requests; written by the data thread
};

// Memory of every rank, under the same number at all.
struct RmaRegion {
  RmaCommunicator* communicator = nullptr;
  uint32_t id = 0;
  uint64_t bytes = 0;                  // of this rank's
  std::atomic<uint32_t> under_way{0};  // operations that name it; written by the data thread
};

struct RmaRequest {
  RmaRequest* next = nullptr;
  RmaContext* context = nullptr;  // null: it is free
  uint64_t target = 0;            // of its lane's count_done
  verbena::Transfer transfer{};
  verbena::RemoteWord word{};
  uint64_t addend = 0;
  std::array<RmaRegion*, 3> regions{};  // that it names
  bool is_get = false;
  bool has_transfer = false, has_add = false;  // still to be handed to the endpoint
  bool is_last_of_add = false;                 // of those that one add stands for
  bool is_done = false, has_failed = false;
  // Its signal was refused while its bytes were under way already; `is_untested`: the caller was told at
  // once.
  bool has_moved = false, is_refused = false, is_untested = false;
};

// The bytes or the word of a put, a signal or a get: offsets count from the start of this or the peer's
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
  // Waits for nobody. Requests, contexts and regions that are left go too.
  ~RmaCommunicator();

  // --- Collective, each with a deadline. Any thread; one at a time.
  base::Result<RmaContext*> create_context(const RmaContextOptions& options);
  // `memory.dmabuf_fd` -1: by address. All ranks succeed, or none.
  base::Result<RmaRegion*> register_memory(const verbena::EndpointMemory& memory);

  // --- Any thread.
  void destroy_context(RmaContext* context);
  // Once nothing that names it is under way.
  void deregister_memory(RmaRegion* region);
  bool has_error() const { return has_error_.load(std::memory_order_relaxed); }

  // --- The data thread's. `lane`: of the context's index. `is_hinted`: more to the same peer follows at
  // once.
  Outcome put(RmaContext& context, uint32_t index, uint32_t peer, const RmaBytes& bytes,
              const RmaSignal& signal, bool is_hinted, void** request);
  Outcome get(RmaContext& context, uint32_t index, uint32_t peer, const RmaBytes& bytes, bool is_hinted,
              void** request);
  // Gets tell that they are done when the GPU can see their bytes: nothing is left to do.
  void flush() { endpoint_->ring(); }
  Outcome test(RmaRequest& request, int* done);
  Outcome progress();

 private:
  static constexpr uint32_t kLanes = 4;
  static constexpr uint32_t kSendDepth = 256;
  static constexpr uint32_t kMaxAdds = 4;    // under way on a lane before later ones wait
  static constexpr uint32_t kMaxBatch = 64;  // operations that leave together

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
  // An operation is in one of: waiting, moved (its bytes left, its signal did not), flying.
  struct Lane {
    Queue flying, moved, waiting;
    std::vector<verbena::RemoteWord> signalled;  // words that `moved` still adds to; no two neighbours equal
    uint32_t count_moved = 0;
    uint32_t adds = 0;       // under way
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
  verbena::Posting move_bytes(RmaRequest& request);
  verbena::Posting add_moved(Lane& lane);
  static bool needs_signals(const Lane& lane, const RmaRequest& request);
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
  std::unique_ptr<transport::OneSidedEndpoint> endpoint_;

  std::mutex mutex_;  // guards the collective calls and what they make
  bootstrap::Bootstrap bootstrap_;
  std::vector<bool> is_joined_;
  std::deque<RmaContext> contexts_;
  uint32_t next_lane_ = 0;
  std::vector<std::unique_ptr<RmaRegion>> regions_;  // by id; null: free
  std::vector<RmaRegion*> closing_;                  // to be given back once nothing of them is under way
  std::atomic<bool> has_closing_{false};             // there are such, or a context was closed

  std::atomic<bool> has_error_{false};
  std::vector<Lane> lanes_;        // by peer, lane
  std::vector<uint32_t> waiting_;  // lanes with requests that wait
  std::vector<bool> is_lost_;      // by peer: told
  std::deque<std::vector<RmaRequest>> pool_;
  RmaRequest* free_ = nullptr;
  uint32_t early_tests_ = 0;                              // of requests that were not done
  const RmaRequest* last_early_ = nullptr;                // the latest of them
  std::array<verbena::EndpointCompletion, 64> polled_{};  // of one poll
  Counts counts_;
};

}  // namespace verbena::nccl
