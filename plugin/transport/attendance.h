// Who attends a connection. Its data thread does while requests are open; between them nobody calls, but the
// other end may need an answer (a queue pair has failed there), or a rail is due to be built anew: then the
// service thread does. One word says whose turn it is, so that a connection is one thread's at a time.
#pragma once

#include <atomic>
#include <cstdint>

namespace verbena::transport {

class Attended {
 public:
  // Between enter() and leave() the connection is the data thread's. False: the service thread is at work on
  // it; ask again. Acquire: what the service did is seen.
  bool enter() {
    Turn free = Turn::kNobody;
    return turn_.compare_exchange_strong(free, Turn::kData, std::memory_order_acquire,
                                         std::memory_order_relaxed);
  }
  // Sequentially consistent, as wake() is: either this end sees the wish, or the service sees that the
  // connection is free.
  void leave() {
    turn_.store(Turn::kNobody, std::memory_order_seq_cst);
    if (is_wanted()) [[unlikely]]
      wake();
  }

  // From any thread: something is to be done. The data thread does it in its next call, or the service does.
  void want() {
    wanted_.store(true, std::memory_order_seq_cst);
    wake();
  }
  bool is_wanted() const { return wanted_.load(std::memory_order_seq_cst); }

 protected:
  // On the service thread or the data thread, whoever has the turn. When it is to be called again though
  // nobody wants it, in monotonic nanoseconds; INT64_MAX: never.
  virtual int64_t attend() = 0;
  // Before the look at what is wanted: what comes later is a new wish.
  bool take_wish() { return wanted_.exchange(false, std::memory_order_seq_cst); }
  // On the service thread only: the turn for a look outside of attend().
  bool enter_as_service() {
    Turn free = Turn::kNobody;
    return turn_.compare_exchange_strong(free, Turn::kService, std::memory_order_seq_cst);
  }
  void leave_as_service() { leave(); }
  // The service is never at work on it again. Before anything that attend() touches goes.
  void retire();
  ~Attended() = default;

 private:
  friend class Service;
  enum class Turn : uint8_t { kNobody, kData, kService };

  void wake();

  std::atomic<Turn> turn_{Turn::kNobody};
  std::atomic<bool> wanted_{false};
  std::atomic<bool> is_known_{false};  // to the service
};

}  // namespace verbena::transport
