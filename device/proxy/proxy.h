// What kernels ask for in the put queues, done: every descriptor is checked against the windows and handed to
// the endpoint, and kernels are told what is complete. Queue q uses lane q of each peer, so that what one
// queue asks of a peer takes effect there in order; a signal or word behind an add waits for it.
//
// The first error ends the context: the abort word becomes its kind, which ends every wait of the kernels;
// later descriptors are dropped, and nothing more counts as complete. A descriptor that cannot be, a peer
// that failed or does not answer in time, and fail() are such errors.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "device/proxy/window_table.h"
#include "device/put_queue/abort_word.h"
#include "device/put_queue/put_queue.h"
#include "verbena/endpoint.h"

namespace verbena::symm {

class QueueDrain;

struct ProxyOptions {
  uint32_t rank = 0, count_ranks = 1;  // as the endpoint's: descriptors name ranks below
  int64_t spin_us = -1;     // how long it looks for work before it sleeps; -1: VERBENA_PROXY_SPIN_US
  int64_t timeout_ms = -1;  // for what the NIC never tells the end of; -1: VERBENA_SYMM_TIMEOUT_MS
};

// Since the start; each number for itself.
struct ProxyCounts {
  uint64_t descriptors, rounds, sleeps;
};

class Proxy {
 public:
  // All outlive it. The endpoint has at least as many lanes as there are queues, and no other driver.
  Proxy(Endpoint& endpoint, PutQueue& queues, AbortWord& abort, const ProxyOptions& options);
  ~Proxy();  // stop()
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  // Calls from any thread.

  // `bytes` of every rank's heap from `heap_offset` on are the endpoint's region of this id, here and at all
  // peers. Windows do not overlap.
  base::Outcome add_window(uint64_t heap_offset, uint64_t bytes, uint32_t region);
  // Returns when the proxy looks at it no more (within microseconds; its sleep at most), so that the region
  // may be removed. Nothing of it is asked for or under way.
  void remove_window(uint64_t heap_offset);
  // Returns when all is complete that the queues have now: what kernels asked for that have ended. An error
  // if the context fails first, or the proxy stops; what does not become complete is such a failure.
  base::Outcome quiet();
  // For a cause from elsewhere, such as a rank that went: ends the context, as kNetworkFailed.
  void fail(const std::string& cause);
  // The first error, in words; empty: none.
  std::string error() const;
  ProxyCounts counts() const;

  // Its own thread, near the endpoint's port; once.
  base::Outcome start();
  // Until the thread has ended; what is queued or under way then may or may not happen.
  void stop();
  bool is_stopping() const { return is_stopping_.load(std::memory_order_relaxed); }
  // One round, for a caller who did not start(); whether there was anything to do.
  bool work();

 private:
  void run();
  bool poll();
  void give_up_late_peers();
  void take_up_quiet();
  void answer_quiet();
  void end(SymmAbort reason, const std::string& text);

  Endpoint& endpoint_;
  AbortWord& abort_;
  const int64_t spin_ns_, timeout_ns_;
  WindowTable windows_;
  std::vector<std::unique_ptr<QueueDrain>> drains_;
  std::array<EndpointCompletion, 64> polled_{};  // of one poll; the driver's
  struct Standstill {
    uint64_t count_completed = UINT64_MAX;  // none yet: it begins with the first look
    int64_t since_ns = 0;
  };
  std::vector<Standstill> standstills_;  // by queue; the driver's

  mutable std::mutex error_mutex_;
  std::string error_;                    // guarded
  std::atomic<bool> has_failed_{false};  // behind error_

  // Callers of quiet() draw numbers; the driver marks the queues for all that are there, and says up to which
  // number they are quiet.
  std::atomic<uint64_t> quiets_asked_{0}, quiets_answered_{0};
  uint64_t quiets_marked_ = 0;  // the driver's

  std::atomic<bool> is_stopping_{false};
  std::atomic<uint64_t> descriptors_{0}, rounds_{0}, sleeps_{0};  // the driver's
  std::thread thread_;
};

}  // namespace verbena::symm
