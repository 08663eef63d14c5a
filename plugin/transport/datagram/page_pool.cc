#include "transport/datagram/page_pool.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "base/cuda_driver.h"
#include "base/lasting.h"
#include "base/log.h"
#include "base/parameters.h"

namespace verbena::transport::datagram {
namespace {

struct Space {
  std::mutex mutex;
  std::weak_ptr<PageSpace> present;
  bool is_idle() {
    const std::lock_guard lock(mutex);
    return present.expired();
  }
  static Space& instance() {
    static const base::Lasting<Space> space;
    return *space;
  }
};

size_t round_up(size_t bytes) {
  return (bytes + PagePool::kMostPageBytes - 1) / PagePool::kMostPageBytes * PagePool::kMostPageBytes;
}

}  // namespace

base::Result<std::shared_ptr<PageSpace>> PageSpace::acquire(bool in_gpu) {
  Space& space = Space::instance();
  const std::lock_guard lock(space.mutex);
  if (auto present = space.present.lock()) return present;
  // Twice the setting. An engine that still waits for its peers' last acknowledgements and the engine that
  // replaces it both have pages here. Memory is allocated only as needed. kRoundingBytes covers rounding.
  // Descriptors have 32-bit offsets.
  constexpr size_t kMostBytes = size_t{1} << 32, kRoundingBytes = size_t{4} * PagePool::kMostPageBytes;
  const auto bounce_bytes = static_cast<size_t>(base::parameters().bounce_bytes);
  const size_t most_bytes = std::min(2 * round_up(bounce_bytes) + kRoundingBytes, kMostBytes);
  std::shared_ptr<PageSpace> made(new PageSpace);
  made->is_pinned_ = base::find_current_gpu() != base::kNoGpu;
  if (in_gpu && made->is_pinned_) {
    auto range = base::Buffer::allocate(base::Place::kDevice, most_bytes);
    if (!range) return range.error();
    made->gpu_range_ = std::move(*range);
    made->gpu_ = base::find_current_gpu();
  } else {
    auto range = base::GrowingBuffer::reserve(most_bytes);
    if (!range) return range.error();
    made->range_ = std::move(*range);
  }
  space.present = made;
  return made;
}

base::Result<std::optional<PageSpace::Slice>> PageSpace::take(size_t length_bytes) {
  const std::optional<Slice> none;
  const bool is_of_gpu = base::find_current_gpu() != base::kNoGpu;
  if (is_of_gpu != is_pinned_ || (!is_pinned_ && base::has_gpu())) return none;
  const std::lock_guard lock(mutex_);
  const size_t wanted = round_up(length_bytes);
  const auto found = std::find_if(free_.begin(), free_.end(),
                                  [&](const Slice& slice) { return slice.length_bytes >= wanted; });
  if (found != free_.end()) {
    const Slice slice = *found;
    free_.erase(found);
    return std::optional(slice);
  }
  if (wanted > max_bytes() - used_bytes_) return none;
  if (!is_gpu_memory()) {
    if (auto outcome = range_.grow(used_bytes_ + wanted); !outcome) return outcome.error();
  }
  return std::optional(Slice{std::exchange(used_bytes_, used_bytes_ + wanted), wanted});
}

void PageSpace::give_back(Slice slice) {
  const std::lock_guard lock(mutex_);
  free_.push_back(slice);
}

bool PageSpace::is_reached_from_here() const {
  return !is_gpu_memory() || base::find_current_gpu() == gpu_;
}

UnpackMemories& PageSpace::unpack_memories() {
  const std::lock_guard lock(mutex_);
  return memories_[base::find_current_gpu()];
}

base::Result<PagePool> PagePool::create(const verbs::Device& device, uint32_t pages, uint32_t page_bytes,
                                        std::shared_ptr<PageSpace> space, uint32_t short_pages) {
  PagePool pool;
  pool.page_bytes_ = page_bytes;
  pool.long_count_ = pages;
  const uint32_t all = pages + short_pages;
  pool.pages_.resize(all);
  pool.lines_ = verbs::take_near_memory(device, size_t{all} * kLineBytes);
  if (short_pages != 0)
    pool.short_memory_ =
        verbs::take_near_memory(device, size_t{short_pages} * protocol::datagram::kShortBytes);
  pool.free_.resize((pages + kRunPages - 1) / kRunPages);
  pool.free_short_.reserve(short_pages);
  for (uint32_t page = all; page != 0; --page) pool.put_back(page - 1);
  pool.space_ = space;
  if (space != nullptr) {
    auto slice = space->take(size_t{pages} * page_bytes);
    if (!slice) return slice.error();
    if (*slice) {
      std::byte* const memory = space->memory() + (*slice)->offset_bytes;
      pool.memory_ = {memory, Free{std::move(space), *slice}};
      return pool;
    }
    base::log_info(
        "datagrams: GPU kernels cannot access %u bounce pages (VERBENA_BOUNCE_BYTES %lld bytes is too small, "
        "or no GPU is current). The plugin, not a kernel, copies the data that these pages receive",
        pages, static_cast<long long>(base::parameters().bounce_bytes));
  }
  pool.memory_.reset(
      static_cast<std::byte*>(std::aligned_alloc(kLeastPageBytes, size_t{pages} * page_bytes)));
  if (pool.memory_ == nullptr)
    return base::fail_errno(base::Status::kSystem, ENOMEM, "datagrams: cannot allocate %u pages of %u bytes",
                            pages, page_bytes);
  return pool;
}

// Prefers the group with the most free pages and, among equal groups, the first, because recently used memory
// may still be in a cache. Avoids groups in which another run is, unless there is no other group.
uint32_t PagePool::take_long(Run& run) {
  uint64_t ahead = run.next == kRunPages ? 0 : free_[run.word] & ~uint64_t{0} << run.next;
  if (ahead == 0) {
    const auto words = static_cast<uint32_t>(free_.size());
    const auto is_of_other = [&](uint32_t word) {
      for (const auto& of_queue : runs_)
        for (const Run& other : of_queue)
          if (&other != &run && other.next != kRunPages && other.word == word) return true;
      return false;
    };
    int most = 0;
    uint32_t best = 0;
    for (uint32_t word = 0; word < words; ++word) {
      const int count = free_[word] == 0 ? 0 : is_of_other(word) ? 1 : 1 + std::popcount(free_[word]);
      if (count > most) most = count, best = word;
    }
    run.word = best;
    ahead = free_[best];
  }
  const auto bit = static_cast<uint32_t>(std::countr_zero(ahead));
  run.next = bit + 1;
  free_[run.word] &= ~(uint64_t{1} << bit);
  return run.word * kRunPages + bit;
}

}  // namespace verbena::transport::datagram
