#include "base/lasting.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <mutex>

#include "tests/base/child.h"

namespace verbena::base {
namespace {

struct Locked {
  std::mutex mutex;
  bool is_idle() {
    const std::lock_guard lock(mutex);
    return true;
  }
  static Locked& instance() {
    static const Lasting<Locked> locked;
    return *locked;
  }
};

// How a child ends whose parent has the lock.
int exit_in_child(bool has_lock, bool uses) {
  Locked& locked = Locked::instance();
  std::unique_lock<std::mutex> lock(locked.mutex, std::defer_lock);
  if (has_lock) lock.lock();
  return run_child([&]() -> int {
    alarm(5);
    std::exit(uses && !Locked::instance().is_idle() ? 1 : 0);
  });
}

TEST(Lasting, AForkedChildLeavesItsParentsObjectAlone) {
  EXPECT_EQ(exit_in_child(true, false), 0);
}

TEST(Lasting, AForkedChildMayUseItItself) {
  EXPECT_EQ(exit_in_child(false, true), 0);
}

TEST(Lasting, IsFreedWhereItIsIdle) {
  static int freed = 0;
  struct Counted {
    ~Counted() { ++freed; }
    bool is_idle() const { return freed_when_asked; }
    bool freed_when_asked = true;
  };
  { const Lasting<Counted> counted; }
  EXPECT_EQ(freed, 1);
  Counted* kept = nullptr;
  {
    const Lasting<Counted> counted;
    kept = &*counted;
    kept->freed_when_asked = false;
  }
  EXPECT_EQ(freed, 1);
  delete kept;
}

}  // namespace
}  // namespace verbena::base
