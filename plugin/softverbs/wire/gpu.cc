#include "softverbs/wire/gpu.h"

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "softverbs/clock.h"
#include "softverbs/copy.h"
#include "softverbs/process.h"

namespace verbena::softverbs::wire {
namespace {

constexpr uint64_t kPatienceNs = 10'000'000'000;

bool copy_and_wait(GpuLanes& lanes, uint32_t gpu, uint64_t to, uint64_t from, uint64_t bytes) {
  GpuLane* lane = lanes.find(Process::get()->gpu_memory.get(gpu).context);
  if (lane == nullptr) return false;
  const uint64_t first = lane->ticket();
  lane->copy({to, from, bytes, first});  // an origin of its own: joined with no other
  const uint64_t last = lane->ticket(), deadline_ns = read_clock_ns() + kPatienceNs;
  for (;;) {
    const LaneState state = lane->look(first, last);
    if (state != LaneState::kBusy) return state == LaneState::kDone;
    if (read_clock_ns() > deadline_ns) return false;
    sched_yield();
  }
}

}  // namespace

namespace {
// By the kernel, which says so when the application has unmapped what it registered.
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

void load_host(const iovec& piece, uint8_t* to) {
  const int error = read_pieces(getpid(), {piece}, {{to, piece.iov_len}});
  if (error == EPERM || error == ENOSYS) memcpy(to, piece.iov_base, piece.iov_len);
}

bool store_memory(GpuLanes& lanes, const Memory& memory, const uint8_t* from) {
  for (size_t i = 0; i < memory.pieces.size(); ++i) {
    const iovec& piece = memory.pieces[i];
    if (memory.gpus[i] == 0) {
      if (!store_host(piece, from)) return false;
    } else if (!copy_and_wait(lanes, memory.gpus[i], reinterpret_cast<uint64_t>(piece.iov_base),
                              reinterpret_cast<uint64_t>(from), piece.iov_len)) {
      return false;
    }
    from += piece.iov_len;
  }
  return true;
}

bool copy_from_gpu(GpuLanes& lanes, const Memory& memory, uint64_t offset, uint8_t* to, uint64_t bytes) {
  for (size_t i = 0; i < memory.pieces.size() && bytes > 0; ++i) {
    const iovec& piece = memory.pieces[i];
    if (offset >= piece.iov_len) {
      offset -= piece.iov_len;
      continue;
    }
    const uint64_t take = piece.iov_len - offset < bytes ? piece.iov_len - offset : bytes;
    const uint64_t from = reinterpret_cast<uint64_t>(piece.iov_base) + offset;
    if (memory.gpus[i] == 0) {
      memcpy(to, reinterpret_cast<const void*>(from), take);
    } else if (!copy_and_wait(lanes, memory.gpus[i], reinterpret_cast<uint64_t>(to), from, take)) {
      return false;
    }
    to += take;
    bytes -= take;
    offset = 0;
  }
  return true;
}

}  // namespace verbena::softverbs::wire
