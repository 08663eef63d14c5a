#include "softverbs/wire/gpu.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "softverbs/engine/process.h"
#include "softverbs/shared/clock.h"
#include "softverbs/shared/copy.h"
#include "softverbs/wire/frame.h"
#include "softverbs/wire/loop.h"

namespace verbena::softverbs::wire {
namespace {

constexpr uint64_t kPatienceNs = 10'000'000'000;

// Stores by a system call: if the application has unmapped its registered memory, the call fails, and no
// signal is raised.
bool store_host(const iovec& piece, const uint8_t* from) {
  static std::atomic<bool> is_forbidden{false};
  if (!is_forbidden.load(std::memory_order_relaxed)) {
    auto* source = const_cast<uint8_t*>(from);
    const int error = write_pieces(getpid(), {piece}, {{source, piece.iov_len}});
    if (error != EPERM && error != ENOSYS) return error == 0;
    is_forbidden.store(true);
  }
  copy_inorder(piece.iov_base, from, piece.iov_len);
  return true;
}

}  // namespace

bool GpuPath::prepare(uint32_t device) {
  return lanes_.prepare(Process::get()->copier, device);
}

// Copies from `from`, or to `to`.
bool GpuPath::copy_and_wait(uint32_t gpu, uint64_t at, uint64_t bytes, const uint8_t* from, uint8_t* to) {
  const GpuAllocation& allocation = Process::get()->gpu_memory.get(gpu);
  GpuLane* lane = lanes_.find(allocation.device);
  if (lane == nullptr || is_lost_) return false;
  const AreaAddress there{allocation.area, at - allocation.base};
  const AreaAddress here{kThisProcess, reinterpret_cast<uint64_t>(to != nullptr ? to : from)};
  const uint64_t first = lane->ticket();
  // Has its own origin, so that it is not joined with another copy.
  lane->copy(to != nullptr ? GpuCopy{here, there, bytes, first} : GpuCopy{there, here, bytes, first});
  const uint64_t last = lane->ticket(), deadline_ns = read_clock_ns() + kPatienceNs;
  for (;;) {
    const LaneState state = lane->look(first, last);
    if (state != LaneState::kBusy) return state == LaneState::kDone;
    if (read_clock_ns() > deadline_ns) {
      is_lost_ = true;  // the copy may still happen, so this lane is never used again
      return false;
    }
    sched_yield();
  }
}

bool GpuPath::write(uint32_t gpu, uint64_t to, const uint8_t* from, uint64_t bytes) {
  return copy_and_wait(gpu, to, bytes, from, nullptr);
}

bool GpuPath::read(uint32_t gpu, uint64_t from, uint8_t* to, uint64_t bytes) {
  return copy_and_wait(gpu, from, bytes, nullptr, to);
}

bool load_host(const iovec& piece, uint8_t* to) {
  const int error = read_pieces(getpid(), {piece}, {{to, piece.iov_len}});
  if (error == EPERM || error == ENOSYS) memcpy(to, piece.iov_base, piece.iov_len);
  return error == 0 || error == EPERM || error == ENOSYS;
}

bool store_memory(Loop& loop, const Memory& memory, const uint8_t* from) {
  if (memory.has_gpu && !loop.is_own_thread()) return false;
  for (size_t i = 0; i < memory.pieces.size(); ++i) {
    const iovec& piece = memory.pieces[i];
    const uint64_t to = reinterpret_cast<uint64_t>(piece.iov_base);
    const bool is_stored = memory.gpus[i] == 0 ? store_host(piece, from)
                                               : loop.gpu_path.write(memory.gpus[i], to, from, piece.iov_len);
    if (!is_stored) return false;
    from += piece.iov_len;
  }
  return true;
}

bool load_memory(Loop& loop, const Memory& memory, uint64_t offset, uint8_t* to, uint64_t bytes) {
  if (memory.has_gpu && !loop.is_own_thread()) return false;
  for (size_t i = 0; i < memory.pieces.size() && bytes > 0; ++i) {
    const iovec& piece = memory.pieces[i];
    if (offset >= piece.iov_len) {
      offset -= piece.iov_len;
      continue;
    }
    const uint64_t take = std::min(piece.iov_len - offset, bytes);
    auto* from = static_cast<uint8_t*>(piece.iov_base) + offset;
    const bool is_loaded =
        memory.gpus[i] == 0 ? load_host({from, take}, to)
                            : loop.gpu_path.read(memory.gpus[i], reinterpret_cast<uint64_t>(from), to, take);
    if (!is_loaded) return false;
    to += take;
    bytes -= take;
    offset = 0;
  }
  return bytes == 0;
}

}  // namespace verbena::softverbs::wire
