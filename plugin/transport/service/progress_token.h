// Which thread may work on a connection. While requests are open its data thread does, in NCCL's calls.
// Between them nobody calls, but the peer may need an answer because a queue pair has failed there, or a rail
// is due to be rebuilt: then the service thread works on it. The token is one word, so that only one thread
// at a time has the connection.
#pragma once

#include <atomic>
#include <cstdint>

namespace verbena::transport {

class ProgressToken {
 public:
  // Between enter() and leave() the connection belongs to the data thread. False: the service thread has it;
  // ask again later. Acquire: the data thread sees what the service thread did.
  bool enter() {
    Turn free = Turn::kNobody;
    return turn_.compare_exchange_strong(free, Turn::kData, std::memory_order_acquire,
                                         std::memory_order_relaxed);
  }
  // Sequentially consistent, as want() is: either this thread sees the request for work, or the service
  // thread sees that the token is free.
  void leave() {
    turn_.store(Turn::kNobody, std::memory_order_seq_cst);
    if (is_wanted()) [[unlikely]]
      wake();
  }

  // From any thread: requests work on the connection. The data thread does it in its next call, or the
  // service thread does it now.
  void want() {
    wanted_.store(true, std::memory_order_seq_cst);
    wake();
  }
  bool is_wanted() const { return wanted_.load(std::memory_order_seq_cst); }

 protected:
  // Called with the token held, on the service thread. Returns when to call again without a request, in
  // monotonic nanoseconds; INT64_MAX: never.
  virtual int64_t progress_idle() = 0;
  // The same where another thread had the token, which does the work and need not say when it leaves.
  virtual int64_t find_next_try() { return INT64_MAX; }
  // Takes the request for work; call it before looking for the work, so that later work makes a new request.
  bool take_request() { return wanted_.exchange(false, std::memory_order_seq_cst); }
  // On the service thread only: takes the token outside of progress_idle().
  bool enter_as_service() {
    Turn free = Turn::kNobody;
    return turn_.compare_exchange_strong(free, Turn::kService, std::memory_order_seq_cst);
  }
  void leave_as_service() { leave(); }
  // The service thread never has it again. Call it before anything that progress_idle() uses is destroyed.
  void retire();
  ~ProgressToken() = default;

 private:
  friend class Service;
  enum class Turn : uint8_t { kNobody, kData, kService };

  void wake();

  std::atomic<Turn> turn_{Turn::kNobody};
  std::atomic<bool> wanted_{false};
  std::atomic<bool> is_known_{false};  // to the service
  int64_t due_ns_ = 0;                 // while it is known; under the service's mutex
};

}  // namespace verbena::transport
