#include "device/proxy/window_table.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/log.h"
#include "verbena/put_abi.h"

namespace verbena::symm {

namespace {

unsigned long long wide(uint64_t value) {
  return value;
}

}  // namespace

WindowTable::WindowTable() {
  versions_.push_back(std::make_unique<Windows>());
  current_.store(versions_.back().get());
}

// The caller must hold mutex_. A version that is neither current nor held will never be held again, as
// take_up() explains.
void WindowTable::publish(Windows windows) {
  versions_.push_back(std::make_unique<Windows>(std::move(windows)));
  current_.store(versions_.back().get(), std::memory_order_seq_cst);
  const Windows* const held = held_.load(std::memory_order_seq_cst);
  std::erase_if(versions_, [&](const auto& one) { return one != versions_.back() && one.get() != held; });
}

base::Outcome WindowTable::add(const Window& window) {
  const std::lock_guard lock(mutex_);
  Windows windows = *versions_.back();
  const auto next = std::find_if(windows.begin(), windows.end(),
                                 [&](const Window& one) { return one.heap_offset >= window.heap_offset; });
  const uint64_t end = window.heap_offset + window.bytes;
  const bool is_range = window.bytes != 0 && end > window.heap_offset && end - 1 <= kPutMaxOffset;
  const bool is_free =
      (next == windows.end() || end <= next->heap_offset) &&
      (next == windows.begin() || (next - 1)->heap_offset + (next - 1)->bytes <= window.heap_offset);
  if (!is_range || !is_free) {
    return base::fail(base::Status::kInvalidArgument, "proxy: invalid window%s (offset %llu, %llu bytes)",
                      is_range ? ": it overlaps another window" : "", wide(window.heap_offset),
                      wide(window.bytes));
  }
  windows.insert(next, window);
  publish(std::move(windows));
  return {};
}

void WindowTable::remove(uint64_t heap_offset) {
  const std::lock_guard lock(mutex_);
  Windows windows = *versions_.back();
  std::erase_if(windows, [&](const Window& one) { return one.heap_offset == heap_offset; });
  publish(std::move(windows));
  const Windows* const current = versions_.back().get();
  for (;;) {
    const Windows* const held = held_.load(std::memory_order_acquire);
    if (held == nullptr || held == current) return;
    std::this_thread::yield();  // the reader's round takes microseconds
  }
}

// First marks the version as held, then checks that it is still current. Either a publisher sees the mark, or
// the reader sees the new version.
void WindowTable::take_up() {
  const Windows* windows = nullptr;
  do {
    windows = current_.load(std::memory_order_acquire);
    held_.store(windows, std::memory_order_seq_cst);
  } while (current_.load(std::memory_order_seq_cst) != windows);
}

const Window* WindowTable::find(uint64_t heap_offset, uint64_t bytes) const {
  const Windows& windows = *held_.load(std::memory_order_relaxed);
  const auto behind =
      std::upper_bound(windows.begin(), windows.end(), heap_offset,
                       [](uint64_t offset, const Window& one) { return offset < one.heap_offset; });
  if (behind == windows.begin()) return nullptr;
  const Window& window = *(behind - 1);
  const uint64_t from = heap_offset - window.heap_offset;
  return from <= window.bytes && bytes <= window.bytes - from ? &window : nullptr;
}

}  // namespace verbena::symm
