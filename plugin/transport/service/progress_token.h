// Decides which thread may work on a connection. While requests are open, the connection's data thread works
// in NCCL's calls. Without open requests NCCL makes no calls, but the peer may need an answer because a queue
// pair has failed there, or a rail may be due to be rebuilt. In this case the service thread works on the
// connection. The token is one word, so only one thread at a time holds the connection.
#pragma once

#include <atomic>
#include <cstdint>

namespace verbena::transport {

class ProgressToken {
 public:
  // Between enter() and leave() the connection belongs to the data thread. Returns false if the service
  // thread holds it; call again later. Acquire ordering: the data thread sees the changes of the service
  // thread.
  bool enter() {
    Turn free = Turn::kNobody;
    return turn_.compare_exchange_strong(free, Turn::kData, std::memory_order_acquire,
                                         std::memory_order_relaxed);
  }
  // Sequentially consistent, like want(): either this thread sees the request for work, or the service thread
  // sees that the token is free.
  void leave() {
    turn_.store(Turn::kNobody, std::memory_order_seq_cst);
    if (is_wanted()) [[unlikely]]
      wake();
  }

  // Requests work on the connection. Any thread may call it. The data thread does the work in its next call,
  // or the service thread does it now.
  void want() {
    wanted_.store(true, std::memory_order_seq_cst);
    wake();
  }
  bool is_wanted() const { return wanted_.load(std::memory_order_seq_cst); }

 protected:
  // Called on the service thread with the token held. Returns the time of the next call in monotonic
  // nanoseconds, or INT64_MAX for no further call without a request.
  virtual int64_t progress_idle() = 0;
  // Called if another thread holds the token, which does the work. Returns the time of the next try.
  virtual int64_t find_next_try() { return INT64_MAX; }
  // Takes the request for work. Call it before checking for work, so that work that arrives later makes a new
  // request.
  bool take_request() { return wanted_.exchange(false, std::memory_order_seq_cst); }
  // For the service thread: takes the token outside of progress_idle().
  bool enter_as_service() {
    Turn free = Turn::kNobody;
    return turn_.compare_exchange_strong(free, Turn::kService, std::memory_order_seq_cst);
  }
  void leave_as_service() { leave(); }
  // After this call the service thread never takes the token again. Call it before destroying anything that
  // progress_idle() uses.
  void retire();
  ~ProgressToken() = default;

 private:
  friend class Service;
  enum class Turn : uint8_t { kNobody, kData, kService };

  void wake();

  std::atomic<Turn> turn_{Turn::kNobody};
  std::atomic<bool> wanted_{false};
  std::atomic<bool> is_known_{false};  // the service knows it
  int64_t due_ns_ = 0;                 // while the service knows it; guarded by the service's mutex
};

}  // namespace verbena::transport
