// Ranks of one bootstrap as threads or as processes of a test.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/bootstrap/bootstrap.h"

namespace verbena::bootstrap {

// What one rank's part came to.
using RankBody = std::function<void(uint32_t rank)>;

// A port that no connection of another test is given meanwhile: below those that the system hands out.
uint16_t find_free_port();

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
  // What each returned; 128 + signal where one ended it. Those that have not ended in time are killed: 255.
  std::vector<int> await(int64_t most_ms);

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
