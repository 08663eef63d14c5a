// Ranks of one bootstrap as threads or as processes of a test.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "bootstrap/bootstrap.h"

namespace verbena::bootstrap {

// What one rank's part came to.
using RankBody = std::function<void(uint32_t rank)>;

// A port of all addresses that the kernel gives to no other process until this one ends: a socket is bound to
// it. Since that does not listen, others may still bind the port by number.
uint16_t reserve_port();

// One thread a rank; returns when all have ended.
void run_as_threads(uint32_t count_ranks, const RankBody& body);

// Joined ranks as threads, `body` in each. Failing to join is a failure of the test.
using JoinedBody = std::function<void(Bootstrap& bootstrap)>;
void run_joined(uint32_t count_ranks, const JoinedBody& body, const BootstrapOptions& options = {});

// For what takes milliseconds alone, and a minute where others have the processors.
inline constexpr int64_t kPatienceMs = 120'000;

// A process a rank; each ends with what `body` returns. Killed with this object if they still run.
class Processes {
 public:
  Processes(uint32_t count, const std::function<int(uint32_t rank)>& body);
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  void kill(uint32_t rank);
  // The exit status of each; 128 + signal if a signal ended it; 255 if it was killed at the deadline.
  std::vector<int> await(int64_t max_ms);

 private:
  std::vector<pid_t> pids_;
  std::vector<int> codes_;  // -1: still runs
};

template <typename T>
T take(base::Result<T> result, const char* what) {
  if (!result) throw std::runtime_error(std::string("no ") + what);
  return std::move(*result);
}

}  // namespace verbena::bootstrap
