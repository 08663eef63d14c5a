#include "scheduler.h"

#include <sched.h>

#include <algorithm>
#include <bit>
#include <ctime>

#include "report.h"
#include "sanitizer.h"

namespace verbena::emulator {

namespace {

constexpr uint64_t kFirstClock_ns = 1'000'000;
constexpr uint64_t kStepNs = 10;
constexpr size_t kStackBytes = kThreadSanitizer ? 128 * 1024 : 64 * 1024;
constexpr uint64_t kLongestBurstSteps = 64;
constexpr uint64_t kStragglersOneIn = 8;
constexpr uint64_t kLookOutsideSteps = 256;   // of them without a change
constexpr uint64_t kStragglersPatience = 64;  // a slow thread runs once in so many choices of it

// Worlds of several threads know nothing of each other.
thread_local Scheduler* active_scheduler = nullptr;

uint64_t read_machine_clock_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

// Thrown where each thread stands once the run has failed, so that its stack is unwound.
struct Stopped {};

// Those that no fiber uses now.
std::vector<std::unique_ptr<Runner>>& spare_runners() {
  static thread_local std::vector<std::unique_ptr<Runner>> runners;
  return runners;
}

std::unique_ptr<Runner> take_runner() {
  auto& spare = spare_runners();
  if (spare.empty()) return std::make_unique<Runner>(kStackBytes);
  auto runner = std::move(spare.back());
  spare.pop_back();
  return runner;
}

bool wakes_later(const Fiber* one, const Fiber* other) {
  return one->wake_ns > other->wake_ns;
}

}  // namespace

Scheduler::Scheduler(uint64_t seed, uint64_t stalled_steps_limit, uint64_t steps_limit,
                     uint32_t outside_patience_s)
    : policy_(seed == 0 ? Policy::kLockstep : static_cast<Policy>(1 + seed % 3)),
      random_state_(seed),
      stalled_steps_limit_(stalled_steps_limit),
      steps_limit_(steps_limit),
      outside_patience_ns_(uint64_t{outside_patience_s} * 1'000'000'000),
      clock_ns_(outside_patience_s == 0 ? kFirstClock_ns : read_machine_clock_ns()) {}

Scheduler* Scheduler::active() {
  return active_scheduler;
}

// splitmix64
uint64_t Scheduler::random() {
  uint64_t z = (random_state_ += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

std::string Scheduler::run(const std::vector<std::unique_ptr<Fiber>>& fibers) {
  if (fibers.empty()) return {};
  fibers_ = &fibers;
  ready_.resize(std::bit_ceil(fibers.size()));
  sleeping_.reserve(fibers.size());
  main_ = std::make_unique<Context>();
  for (const auto& fiber : fibers) {
    fiber->runner = take_runner();
    fiber->runner->context.restart(&Scheduler::enter_fiber);
    if (kThreadSanitizer) fiber->runner->context.name(describe_place(*fiber).c_str());
    fiber->is_slow = random() % kStragglersOneIn == 0;
    push_ready(*fiber);
  }
  active_scheduler = this;
  release_clock(this);
  running_ = take_ready();
  main_->switch_to(running_->runner->context);
  active_scheduler = nullptr;
  running_ = nullptr;
  for (const auto& fiber : fibers) {
    acquire_clock(fiber.get());  // what the thread wrote is now the caller's
    spare_runners().push_back(std::move(fiber->runner));
  }
  return failure_;
}

void Scheduler::enter_fiber() {
  Scheduler* scheduler = active_scheduler;
  Fiber* self = scheduler->running_;
  self->runner->context.finish_first_switch(*scheduler->main_);
  acquire_clock(scheduler);  // what the caller of run() did is before all
  try {
    if (!scheduler->is_stopping()) (*self->body)();
  } catch (const Stopped&) {
  }
  self->state = Fiber::State::kDone;
  release_clock(self);
  scheduler->note_progress();
  Fiber* next = scheduler->choose_next();
  if (next == nullptr) self->runner->context.switch_to(*scheduler->main_);
  scheduler->switch_to(next);
}

void Scheduler::push_ready(Fiber& fiber) {
  fiber.state = Fiber::State::kReady;
  ready_[(ready_head_ + ready_count_++) & (ready_.size() - 1)] = &fiber;
}

Fiber* Scheduler::take_ready() {
  const size_t mask = ready_.size() - 1;
  if (policy_ != Policy::kLockstep) {
    for (int attempt = 0; attempt < 4; ++attempt) {
      const size_t chosen = (random() >> 32) * ready_count_ >> 32;
      std::swap(ready_[ready_head_], ready_[(ready_head_ + chosen) & mask]);
      const bool is_held_back = policy_ == Policy::kStragglers && ready_[ready_head_]->is_slow &&
                                random() % kStragglersPatience != 0;
      if (!is_held_back) break;
    }
    if (policy_ == Policy::kBursts) burst_left_ = random() % kLongestBurstSteps;
  }
  Fiber* taken = ready_[ready_head_];
  ready_head_ = (ready_head_ + 1) & mask;
  --ready_count_;
  return taken;
}

void Scheduler::switch_to(Fiber* next) {
  Fiber* self = running_;
  running_ = next;
  if (next != self) self->runner->context.switch_to(next->runner->context);
}

// Time runs faster while nothing happens, so that deadlines pass in a bounded number of steps.
int Scheduler::stall_shift() const {
  if (outside_patience_ns_ != 0) return 0;
  return static_cast<int>(std::min<uint64_t>(20, stalled_steps_ / (4096 + 8 * fibers_->size())));
}

void Scheduler::wake_sleepers() {
  while (!sleeping_.empty() && sleeping_.front()->wake_ns <= clock_ns_) {
    std::pop_heap(sleeping_.begin(), sleeping_.end(), wakes_later);
    Fiber* woken = sleeping_.back();
    sleeping_.pop_back();
    push_ready(*woken);
  }
}

// Nothing has changed here for some steps: the other threads' turn.
void Scheduler::look_outside() {
  const uint64_t now_ns = read_machine_clock_ns();
  clock_ns_ = std::max(clock_ns_, now_ns);
  if (stalled_steps_ == kLookOutsideSteps) stalled_since_ns_ = now_ns;
  if (now_ns - stalled_since_ns_ > outside_patience_ns_)
    fail("nothing has changed for so long, here or outside\n" + describe_waits());
  sched_yield();
}

void Scheduler::count_step(const char* doing, const void* where, int64_t detail) {
  running_->doing = doing;
  running_->where = where;
  running_->detail = detail;
  ++steps_;
  ++stalled_steps_;
  clock_ns_ += kStepNs << stall_shift();
  if (outside_patience_ns_ != 0) {
    if (stalled_steps_ % kLookOutsideSteps == 0) look_outside();
  } else if (stalled_steps_ > stalled_steps_limit_) {
    fail("livelock: nothing has changed in " + std::to_string(stalled_steps_) + " steps\n" +
         describe_waits());
  }
  if (steps_ > steps_limit_)
    fail("still not done after " + std::to_string(steps_) + " steps\n" + describe_waits());
  wake_sleepers();
}

void Scheduler::step(const char* doing, const void* where, int64_t detail) {
  count_step(doing, where, detail);
  if (ready_count_ == 0) return;
  if (policy_ == Policy::kBursts && burst_left_ > 0) {
    --burst_left_;
    return;
  }
  push_ready(*running_);
  switch_to(take_ready());
  if (is_stopping()) throw Stopped();
}

void Scheduler::wait() {
  running_->state = Fiber::State::kWaiting;
  switch_to(choose_next());
  if (is_stopping()) throw Stopped();
}

void Scheduler::wake(Fiber& fiber) {
  push_ready(fiber);
}

void Scheduler::sleep(uint64_t nanoseconds) {
  step("pauses");
  running_->wake_ns = clock_ns_ + (nanoseconds << stall_shift());
  running_->state = Fiber::State::kSleeping;
  sleeping_.push_back(running_);
  std::push_heap(sleeping_.begin(), sleeping_.end(), wakes_later);
  switch_to(choose_next());
  if (is_stopping()) throw Stopped();
}

void Scheduler::wait_until_step(uint64_t target) {
  while (steps_ < target && (ready_count_ > 0 || !sleeping_.empty())) {
    step("waits for a step");
    note_progress();
  }
}

// The thread that runs now is in no list of those that may. Once stopping, every thread is run to its end,
// which is where it throws; null: all have ended.
Fiber* Scheduler::choose_next() {
  if (!is_stopping() && ready_count_ == 0 && !sleeping_.empty()) {
    clock_ns_ = std::max(clock_ns_, sleeping_.front()->wake_ns);
    wake_sleepers();
  }
  if (!is_stopping() && ready_count_ > 0) return take_ready();
  const auto is_unfinished = [](const auto& fiber) { return fiber->state != Fiber::State::kDone; };
  const auto unfinished = std::find_if(fibers_->begin(), fibers_->end(), is_unfinished);
  if (unfinished == fibers_->end()) return nullptr;
  if (!is_stopping()) {
    const IgnoreScope ignore;
    failure_ = "deadlock: every thread that has not ended waits for another\n" + describe_waits();
  }
  return unfinished->get();
}

void Scheduler::fail(const std::string& text) {
  {
    const IgnoreScope ignore;
    if (failure_.empty()) failure_ = text;
  }
  throw Stopped();
}

std::string Scheduler::describe_waits() const {
  const IgnoreScope ignore;
  return describe_fibers(*fibers_, running_);
}

}  // namespace verbena::emulator
