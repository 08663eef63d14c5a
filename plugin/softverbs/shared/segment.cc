#include "softverbs/shared/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "softverbs/shared/random.h"

namespace verbena::softverbs {
namespace {
constexpr uint64_t kBlockBytes = 64 << 10;
constexpr uint64_t kPageBytes = 4096, kGrainBytes = 512;
constexpr uint32_t kFirstPoolEntries = 1024;

uint64_t round_up(uint64_t value, uint64_t grain) {
  return (value + grain - 1) / grain * grain;
}

// Returns the granularity of a ring's length and start. It is small for small rings, because there are many
// rings of a few hundred bytes.
uint64_t choose_grain(uint64_t bytes) {
  return bytes < kPageBytes ? kGrainBytes : kPageBytes;
}

// ftruncate() above the limit of file sizes would send SIGXFSZ, which ends the process by default.
bool is_within_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= kSegmentBytes) return true;
  errno = EFBIG;
  return false;
}
}  // namespace

std::unique_ptr<Segment> Segment::create() {
  if (!is_within_file_limit()) return nullptr;
  const int fd = memfd_create("softverbs", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return nullptr;
  if (ftruncate(fd, kSegmentBytes) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const int error = errno;
    ::close(fd);
    errno = error;
    return nullptr;
  }
  auto segment = map(fd);
  if (!segment) return nullptr;
  segment->committed_.resize(kSegmentBytes / kBlockBytes);
  if (const int error = segment->commit(segment->header()); error != 0) {
    errno = error;
    return nullptr;
  }
  return segment;
}

// Maps the segment only if it cannot shrink: an access beyond the new end of a file that its owner shortened
// would kill this process.
std::unique_ptr<Segment> Segment::open(int pid, int descriptor) {
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, descriptor);
  struct stat status {};
  if (stat(path, &status) != 0) return nullptr;
  const int fd = S_ISREG(status.st_mode) ? ::open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK) : -1;
  if (fd < 0 && S_ISREG(status.st_mode)) return nullptr;
  const int seals = fd < 0 ? 0 : fcntl(fd, F_GET_SEALS);
  const bool is_whole = fd >= 0 && seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &status) == 0 &&
                        static_cast<uint64_t>(status.st_size) == kSegmentBytes;
  if (is_whole) return map(fd);
  if (fd >= 0) ::close(fd);
  errno = EPERM;
  return nullptr;
}

std::unique_ptr<Segment> Segment::map(int fd) {
  void* base = mmap(nullptr, kSegmentBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED) {
    ::close(fd);
    return nullptr;
  }
  madvise(base, kSegmentBytes, MADV_DONTDUMP);
  return std::unique_ptr<Segment>(new Segment(fd, static_cast<uint8_t*>(base)));
}

Segment::~Segment() {
  munmap(base_, kSegmentBytes);
  if (fd_ >= 0) ::close(fd_);
}

void Segment::give_back() {
  if (fd_ < 0) return;
  fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kSegmentBytes);
  ::close(std::exchange(fd_, -1));
}

int Segment::commit(uint64_t offset, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  for (uint64_t block = offset / kBlockBytes; block * kBlockBytes < offset + bytes; ++block) {
    if (committed_[block]) continue;
    const int error = posix_fallocate(fd_, static_cast<off_t>(block * kBlockBytes), kBlockBytes);
    if (error != 0) return error;
    committed_[block] = true;
  }
  return 0;
}

uint64_t Arena::take(uint64_t bytes, uint64_t grain) {
  for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
    const uint64_t offset = round_up(hole->first, grain), hole_end = hole->first + hole->second;
    if (offset + bytes > hole_end) continue;
    if (offset + bytes != hole_end) holes_.emplace(offset + bytes, hole_end - offset - bytes);
    if (offset == hole->first)
      holes_.erase(hole);
    else
      hole->second = offset - hole->first;
    return offset;
  }
  const uint64_t former_end = end_, offset = round_up(end_, grain);
  if (kSegmentBytes - offset < bytes) return 0;
  end_ = offset + bytes;
  if (offset != former_end) add_hole(former_end, offset - former_end);
  return offset;
}

uint64_t Arena::allocate(uint64_t bytes) {
  const uint64_t grain = choose_grain(bytes);
  bytes = round_up(bytes, grain);
  uint64_t offset = 0;
  {
    std::lock_guard lock(mutex_);
    offset = take(bytes, grain);
    if (offset != 0) taken_.emplace(offset, bytes);
  }
  const int error = offset == 0 ? ENOMEM : segment_.commit(offset, bytes);
  if (error != 0) {
    if (offset != 0) free(offset);
    errno = error;
    return 0;
  }
  memset(segment_.at<uint8_t>(offset), 0, bytes);
  return offset;
}

void Arena::free(uint64_t offset) try {
  std::lock_guard lock(mutex_);
  const auto known = taken_.find(offset);
  if (known == taken_.end()) return;
  add_hole(offset, known->second);
  taken_.erase(known);
} catch (const std::bad_alloc&) {
  // On failure, the block stays allocated.
}

void Arena::add_hole(uint64_t offset, uint64_t bytes) {
  auto next = holes_.lower_bound(offset);
  if (next != holes_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = holes_.erase(next);
  }
  if (next != holes_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  holes_.emplace_hint(next, offset, bytes);
}

IndexPool::IndexPool(uint32_t first, uint32_t count)
    : first_(first),
      count_(count),
      used_(std::min(count, kFirstPoolEntries)),
      next_(first + draw_below(static_cast<uint32_t>(used_.size()) - first)) {}

int64_t IndexPool::allocate() {
  std::lock_guard lock(mutex_);
  if ((in_use_ + first_) * 2 >= used_.size()) used_.resize(std::min<size_t>(count_, used_.size() * 2));
  const uint32_t size = static_cast<uint32_t>(used_.size());
  for (uint32_t tried = first_; tried < size; ++tried) {
    const uint32_t index = next_;
    next_ = next_ + 1 >= size ? first_ : next_ + 1;
    if (used_[index]) continue;
    used_[index] = true;
    ++in_use_;
    high_water_ = std::max(high_water_, index + 1);
    return index;
  }
  return -1;
}

void IndexPool::free(uint32_t index) {
  std::lock_guard lock(mutex_);
  used_[index] = false;
  --in_use_;
}

uint32_t IndexPool::get_high_water() {
  std::lock_guard lock(mutex_);
  return high_water_;
}

}  // namespace verbena::softverbs
