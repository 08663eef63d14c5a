// The words of a ring (ring.h) and its slots in memory that the processes of a host share. The memory has no
// name in any file system: it is a memfd that goes from process to process by descriptor, and is gone with
// its last user, however that one ends.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/file_descriptor.h"
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
  uint64_t chunk_bytes = 0;    // what a slot holds, 1 or more

  bool is_valid() const;
  uint64_t stride_bytes() const;  // from slot to slot
  uint64_t slots_offset_bytes() const;
  uint64_t length_bytes() const;  // of it all, in pages; only of a valid shape
};

// One part of a message, or all of it.
struct SlotHead {
  static constexpr uint32_t kFirst = 1, kLast = 2;  // of a message's parts

  std::atomic<uint64_t> published;
  uint64_t length_bytes;   // of this part
  uint64_t message_bytes;  // of all parts
  uint32_t flags;
};

struct alignas(2 * kLineBytes) ReaderLine {
  std::atomic<uint64_t> released;
  std::atomic<uint64_t> taken;  // told in errors
  LifeWord reader, writer;  // the writer holds one for each reader, as the kernel wakes one waiter of a word
};
static_assert(sizeof(ReaderLine) == 2 * kLineBytes);

struct RingControl {
  // Each in a line of its own, as another side writes it.
  alignas(2 * kLineBytes) std::atomic<uint64_t> sleepers[kMaxReaders / kReadersPerWord];
  std::atomic<uint32_t> bell;
  alignas(2 * kLineBytes) std::atomic<uint32_t> writer_sleeps;
  std::atomic<uint32_t> writer_bell;
  alignas(2 * kLineBytes) std::atomic<uint32_t> ended;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(SlotHead) <= kLineBytes && sizeof(std::atomic<uint32_t>) == 4);

// Where the words are; copied freely. The Memory of ring.h.
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
  // chunk_bytes, aligned to kLineBytes.
  std::byte* data(uint32_t slot) const { return reinterpret_cast<std::byte*>(&head(slot)) + kLineBytes; }

  static void fence();
  // On the futex: until it is woken, unless the word has changed already. kNoDeadline: for ever.
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

// The memory itself, mapped.
class SharedRing {
 public:
  // Zero-filled, so that everything is free and nobody sleeps.
  static base::Result<SharedRing> create(const RingShape& shape);
  // What create() made in another process. Takes the descriptor unless it fails.
  static base::Result<SharedRing> open(base::FileDescriptor& file, const RingShape& shape);
  SharedRing() = default;
  SharedRing(SharedRing&& other) noexcept;
  SharedRing& operator=(SharedRing&& other) noexcept;
  ~SharedRing();

  int fd() const { return file_.get(); }
  RingMemory memory() const { return {begin_, shape_}; }
  // For direct copies between it and the calling thread's current GPU, until this object goes. kInvalidUsage:
  // there is no GPU.
  base::Outcome pin();

 private:
  base::Outcome map(int file);
  void unmap();

  base::FileDescriptor file_;
  RingShape shape_;
  std::byte* begin_ = nullptr;
  bool is_pinned_ = false;
};

}  // namespace verbena::message_queue
