#include "softverbs/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace verbena::softverbs {
namespace {
constexpr uint64_t kBlockBytes = 64 << 10;
constexpr uint64_t kPageBytes = 4096, kGrainBytes = 512;
constexpr uint32_t kFirstPoolEntries = 1024;

uint64_t round_up(uint64_t value, uint64_t grain) {
  return (value + grain - 1) / grain * grain;
}

// Of a ring's length and start. Rings of a few hundred bytes are many.
uint64_t choose_grain(uint64_t bytes) {
  return bytes < kPageBytes ? kGrainBytes : kPageBytes;
}
}  // namespace

std::unique_ptr<Segment> Segment::create(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return nullptr;
  if (ftruncate(fd, kSegmentBytes) != 0) {
    ::close(fd);
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

std::unique_ptr<Segment> Segment::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  return fd < 0 ? nullptr : map(fd);
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
  ::close(fd_);
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
    const uint64_t offset = round_up(hole->offset, grain), hole_end = hole->offset + hole->bytes;
    if (offset + bytes > hole_end) continue;
    const Hole behind{offset + bytes, hole_end - offset - bytes};
    hole->bytes = offset - hole->offset;
    if (hole->bytes == 0)
      hole = holes_.erase(hole);
    else
      ++hole;
    if (behind.bytes != 0) holes_.insert(hole, behind);
    return offset;
  }
  const uint64_t former_end = end_, offset = round_up(end_, grain);
  if (kSegmentBytes - offset < bytes) return 0;
  end_ = offset + bytes;
  if (offset != former_end) add_hole({former_end, offset - former_end});
  return offset;
}

uint64_t Arena::allocate(uint64_t bytes) {
  const uint64_t grain = choose_grain(bytes);
  bytes = round_up(bytes, grain);
  uint64_t offset = 0;
  {
    std::lock_guard lock(mutex_);
    offset = take(bytes, grain);
  }
  const int error = offset == 0 ? ENOMEM : segment_.commit(offset, bytes);
  if (error != 0) {
    if (offset != 0) free(offset, bytes);
    errno = error;
    return 0;
  }
  memset(segment_.at<uint8_t>(offset), 0, bytes);
  return offset;
}

void Arena::free(uint64_t offset, uint64_t bytes) {
  bytes = round_up(bytes, choose_grain(bytes));
  std::lock_guard lock(mutex_);
  add_hole({offset, bytes});
}

void Arena::add_hole(Hole added) {
  auto next = std::lower_bound(holes_.begin(), holes_.end(), added.offset,
                               [](const Hole& hole, uint64_t at) { return hole.offset < at; });
  next = holes_.insert(next, added);
  if (next + 1 != holes_.end() && next->offset + next->bytes == (next + 1)->offset) {
    next->bytes += (next + 1)->bytes;
    holes_.erase(next + 1);
  }
  if (next != holes_.begin() && (next - 1)->offset + (next - 1)->bytes == next->offset) {
    (next - 1)->bytes += next->bytes;
    holes_.erase(next);
  }
}

IndexPool::IndexPool(uint32_t first, uint32_t count)
    : first_(first), count_(count), used_(std::min(count, kFirstPoolEntries)), next_(first) {}

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
