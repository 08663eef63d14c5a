// Carries out the operations that kernels request through the put queues. The proxy checks every descriptor
// against the windows, passes it to the endpoint, and publishes completions to the kernels. Queue q uses lane
// q of each peer, so the operations of one queue on one peer take effect in order. A signal or word that
// follows an atomic add waits for the add.
//
// The first error ends the context: the proxy writes the kind of the error to the abort word, which aborts
// every wait of the kernels. It then drops all later descriptors, and publishes no more completions. Such
// errors are an invalid descriptor, a peer that failed or did not answer in time, and fail().
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
  uint32_t rank = 0, count_ranks = 1;  // same as for the endpoint; descriptors may name ranks below
                                       // count_ranks
  int64_t spin_us = -1;                // how long the thread polls for work before it sleeps; -1 selects
                                       // VERBENA_PROXY_SPIN_US
  int64_t timeout_ms = -1;             // timeout of operations that the NIC does not complete; -1 selects
                                       // VERBENA_SYMM_TIMEOUT_MS
};

// Counters since the start. Each counter is read separately.
struct ProxyCounts {
  uint64_t descriptors, rounds, sleeps;
};

class Proxy {
 public:
  // All arguments must outlive the proxy. The endpoint needs at least one lane per queue, and no other thread
  // may drive it.
  Proxy(Endpoint& endpoint, PutQueue& queues, AbortWord& abort, const ProxyOptions& options);
  ~Proxy();  // calls stop()
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  // Any thread may call these functions.

  // Adds a window, which consists of the `bytes` bytes at `heap_offset` of every rank's heap. The endpoint's
  // region `region` must be this memory, on this rank and on all peers. Windows must not overlap.
  base::Outcome add_window(uint64_t heap_offset, uint64_t bytes, uint32_t region);
  // Removes a window. No operation on the window may be queued or outstanding. Returns when the proxy no
  // longer reads the window's entry, so that the caller may remove the region. This takes microseconds, or as
  // long as the proxy sleeps.
  void remove_window(uint64_t heap_offset);
  // Waits until all operations that are now in the queues are complete. These include all requests of kernels
  // that have ended. Returns an error if the context fails first (for example because an operation times out)
  // or the proxy stops.
  base::Outcome quiet();
  // Ends the context with kNetworkFailed for a cause outside the proxy, such as a rank that exited.
  void fail(const std::string& cause);
  // Returns the text of the first error, or an empty text if there was none.
  std::string error() const;
  ProxyCounts counts() const;

  // Starts the proxy's thread on processors near the endpoint's port. Call it once.
  base::Outcome start();
  // Stops the thread and waits for its end. Operations that are queued or outstanding may or may not take
  // effect.
  void stop();
  bool is_stopping() const { return is_stopping_.load(std::memory_order_relaxed); }
  // Runs one round, for a caller that did not start(). Returns whether there was anything to do.
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
  std::array<EndpointCompletion, 64> polled_{};  // completions of one poll; used by the driving thread
  struct Standstill {
    uint64_t count_completed = UINT64_MAX;  // UINT64_MAX if not started
    int64_t since_ns = 0;
  };
  std::vector<Standstill> standstills_;  // by queue; used by the driving thread

  mutable std::mutex error_mutex_;
  std::string error_;                    // guarded
  std::atomic<bool> has_failed_{false};  // set after error_

  // Each caller of quiet() takes a number. The driving thread marks the queues for all waiting callers, and
  // publishes up to which number the queues have become quiet.
  std::atomic<uint64_t> quiets_asked_{0}, quiets_answered_{0};
  uint64_t quiets_marked_ = 0;  // the driver's

  std::atomic<bool> is_stopping_{false};
  std::atomic<uint64_t> descriptors_{0}, rounds_{0}, sleeps_{0};  // the driver's
  std::thread thread_;
};

}  // namespace verbena::symm
