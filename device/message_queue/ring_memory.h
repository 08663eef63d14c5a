// The words of a ring (ring.h) and its slots, in memory that processes of one host share. The memory is a
// memfd without a name in any file system. Processes pass it on by descriptor; it is freed with its last
// user, even if that process is killed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/file_descriptor.h"
#include "base/movable.h"
#include "base/status.h"
#include "device/message_queue/life_line.h"
#include "device/message_queue/ring.h"

namespace verbena::message_queue {

inline constexpr uint32_t kMaxSlots = 65536;
inline constexpr uint64_t kMaxRingBytes = uint64_t{1} << 40;
inline constexpr size_t kLineBytes = 64;

struct RingShape {
  uint32_t count_readers = 0;  // 1 to kMaxReaders
  uint32_t count_slots = 0;    // 2 to kMaxSlots
  uint64_t chunk_bytes = 0;    // capacity of a slot, 1 or more

  bool is_valid() const;
  uint64_t stride_bytes() const;  // distance between slots
  uint64_t slots_offset_bytes() const;
  uint64_t length_bytes() const;  // length of the whole memory, in whole pages; only for a valid shape
};

// The header of a slot, which holds a whole message or one part of it.
struct SlotHead {
  static constexpr uint32_t kFirst = 1, kLast = 2;  // marks the first and the last part of a message

  std::atomic<uint64_t> published;
  uint64_t length_bytes;   // length of this part
  uint64_t message_bytes;  // length of all parts together
  uint32_t flags;
};

struct alignas(2 * kLineBytes) ReaderLine {
  std::atomic<uint64_t> released;
  std::atomic<uint64_t> taken;  // for error messages
  // The writer has a separate word for each reader, because Linux wakes only one waiter of a word.
  LifeWord reader, writer;
};
static_assert(sizeof(ReaderLine) == 2 * kLineBytes);

struct RingControl {
  // Each group is on separate cache lines, because different processes write them.
  alignas(2 * kLineBytes) std::atomic<uint64_t> sleepers[kMaxReaders / kReadersPerWord];
  std::atomic<uint32_t> bell;
  alignas(2 * kLineBytes) std::atomic<uint32_t> writer_sleeps;
  std::atomic<uint32_t> writer_bell;
  alignas(2 * kLineBytes) std::atomic<uint32_t> ended;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(SlotHead) <= kLineBytes && sizeof(std::atomic<uint32_t>) == 4);

// Finds the words in the memory. This is the Memory parameter of ring.h. It is cheap to copy and owns
// nothing.
class RingMemory {
 public:
  RingMemory() = default;
  RingMemory(std::byte* begin, const RingShape& shape) : begin_(begin), shape_(shape) {}

  uint32_t count_readers() const { return shape_.count_readers; }
  uint32_t count_slots() const { return shape_.count_slots; }
  const RingShape& shape() const { return shape_; }

  std::atomic<uint64_t>& published(uint32_t slot) const { return head(slot).published; }
  std::atomic<uint64_t>& released(uint32_t reader) const { return line(reader).released; }
  std::atomic<uint64_t>& taken(uint32_t reader) const { return line(reader).taken; }
  LifeWord& life_of_reader(uint32_t reader) const { return line(reader).reader; }
  LifeWord& life_of_writer(uint32_t reader) const { return line(reader).writer; }
  std::atomic<uint64_t>& sleepers(uint32_t word) const { return control().sleepers[word]; }
  std::atomic<uint32_t>& bell() const { return control().bell; }
  std::atomic<uint32_t>& writer_sleeps() const { return control().writer_sleeps; }
  std::atomic<uint32_t>& writer_bell() const { return control().writer_bell; }
  std::atomic<uint32_t>& ended() const { return control().ended; }

  SlotHead& head(uint32_t slot) const {
    return *reinterpret_cast<SlotHead*>(begin_ + shape_.slots_offset_bytes() + slot * shape_.stride_bytes());
  }
  // The slot's chunk_bytes of data, aligned to kLineBytes.
  std::byte* data(uint32_t slot) const { return reinterpret_cast<std::byte*>(&head(slot)) + kLineBytes; }

  static void fence();
  // Sleeps on the futex until another thread wakes it. Returns at once if the word is not `heard`. With
  // kNoDeadline, the sleep has no time limit.
  static SleepEnd sleep(const std::atomic<uint32_t>& word, uint32_t heard, int64_t deadline_ns);
  static void wake(const std::atomic<uint32_t>& word);

 private:
  RingControl& control() const { return *reinterpret_cast<RingControl*>(begin_); }
  ReaderLine& line(uint32_t reader) const {
    return *(reinterpret_cast<ReaderLine*>(begin_ + sizeof(RingControl)) + reader);
  }

  std::byte* begin_ = nullptr;
  RingShape shape_;
};

inline constexpr int64_t kNoDeadline = INT64_MAX;

// Owns the mapped memory.
class SharedRing {
 public:
  // Creates zero-filled memory: all slots are free and nobody sleeps.
  static base::Result<SharedRing> create(const RingShape& shape);
  // Maps memory that create() made in another process. Takes ownership of the descriptor on success.
  static base::Result<SharedRing> open(base::FileDescriptor& file, const RingShape& shape);
  SharedRing() = default;
  SharedRing(SharedRing&&) noexcept = default;
  SharedRing& operator=(SharedRing&&) noexcept = default;
  ~SharedRing();

  int fd() const { return file_.get(); }
  RingMemory memory() const { return {begin_, shape_}; }
  // Pins the memory for direct copies to and from the calling thread's current GPU, until this object is
  // destroyed. Returns kInvalidUsage if no GPU is current.
  base::Outcome pin();

 private:
  base::Outcome map(int file);
  void unmap();

  base::FileDescriptor file_;
  base::Movable<RingShape> shape_;
  base::Movable<std::byte*> begin_;
  base::Movable<bool> is_pinned_;
};

}  // namespace verbena::message_queue
