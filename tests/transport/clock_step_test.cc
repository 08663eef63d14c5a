// The wall clock is set back by an hour after the service thread has read it, as NTP or an administrator may
// do: the thread goes on. This program's clock is an hour ahead whenever a library reads it; the kernel's is
// not.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>

#include "base/clock.h"
#include "transport/service/progress_token.h"

// Before glibc's: the C++ library finds this one.
extern "C" int clock_gettime(clockid_t clock, timespec* time) noexcept {
  const auto result = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME) time->tv_sec += 3600;
  return result;
}

namespace verbena::transport {
namespace {

constexpr int64_t kPeriodNs = 20 * base::kNsPerMs;

// Wants to be called every 20 ms.
class Ticking final : public ProgressToken {
 public:
  ~Ticking() { retire(); }
  // Whether it is called `times` more, within a time that is long for that.
  bool ticks(int times) {
    const int wanted = ticks_.load() + times;
    const auto deadline = base::Deadline::after_ms(20'000);
    while (ticks_.load() < wanted && !deadline.has_passed()) usleep(1'000);
    return ticks_.load() >= wanted;
  }

 private:
  int64_t progress_idle() override {
    take_request();
    ++ticks_;
    return base::monotonic_ns() + kPeriodNs;
  }

  std::atomic<int> ticks_{0};
};

TEST(ClockStepTest, AClockThatIsSetBackStopsNothing) {
  Ticking token;
  token.want();
  EXPECT_TRUE(token.ticks(10));
}

}  // namespace
}  // namespace verbena::transport
