#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace verbena::softverbs_test {

// Memory of each kind that an application may register, made with CUDA's driver found at run time.
enum class Kind {
  kPageable,    // malloc
  kPinned,      // cuMemHostAlloc
  kDevice,      // cuMemAlloc: exported by IPC
  kExportable,  // cuMemCreate with a descriptor handle, as NCCL allocates
  kPieced,      // several of these side by side, as PyTorch's expandable segments: peers do not map it
  kPrivate,     // cuMemCreate without handle: no other process can map it, and it is not registered
};
inline constexpr Kind kKinds[] = {Kind::kPageable, Kind::kPinned, Kind::kDevice, Kind::kExportable,
                                  Kind::kPieced};
const char* get_name(Kind kind);
inline bool is_on_gpu(Kind kind) {
  return kind != Kind::kPageable && kind != Kind::kPinned;
}

// Starts CUDA in this process, which must not fork afterwards: CUDA does not survive a fork.
void start_cuda();

// How many GPUs this process sees; 0 without CUDA. Starts CUDA only in a forked child: the caller may fork.
int count_gpus();

// From now on the stand-in for CUDA refuses all asynchronous copies of this process but the next few. False
// where a real driver is loaded.
bool refuse_copies_after(int copies);

// Asynchronous copies of this process do not begin while the stand-in holds them. False as above.
bool hold_copies(bool is_held);

// A kernel of this process waits until a word of memory on this GPU is not 0, for a minute at most. False if
// the driver refuses.
bool spin_until(int gpu, uint64_t word);
bool is_spinning();

// Calls that a thread of an application makes while a kernel of the application waits for a message. Some of
// them were measured to stop copies in this process until the kernel ends.
enum class Blocker {
  kNothing,
  kFirstLaunch,  // of a kernel, which the driver loads then
  kGraph,        // made executable, and launched behind the kernel
  kFree,         // of memory
  kSynchronize,
  kPageableCopy,
  kAllocate,
  kRegister,  // host memory
};
inline constexpr Blocker kBlockers[] = {Blocker::kNothing,  Blocker::kFirstLaunch, Blocker::kGraph,
                                        Blocker::kFree,     Blocker::kSynchronize, Blocker::kPageableCopy,
                                        Blocker::kAllocate, Blocker::kRegister};
const char* get_name(Blocker blocker);
// Prepares what does not belong to it, before there is such a kernel.
void prepare_blocker(int gpu, Blocker blocker);
// Does it; on a thread of its own, as it may return only when the kernel has ended.
void run_blocker(int gpu, Blocker blocker);

// The process that copies for this one; 0: there is none.
int find_copier();
std::string describe_copier();
// How often this process has asked its copier to copy, all and many copies at a time. Zero if it has none.
struct CopyCalls {
  int all = 0, batches = 0;
};
CopyCalls count_copy_calls();

class TestMemory {
 public:
  TestMemory(Kind kind, int gpu, size_t bytes);
  ~TestMemory();
  TestMemory(const TestMemory&) = delete;
  TestMemory& operator=(const TestMemory&) = delete;

  uint64_t address() const { return address_; }
  size_t size() const { return bytes_; }
  // The first so many bytes, if there are more.
  void fill(uint8_t seed, size_t most_bytes = SIZE_MAX);
  void clear(size_t most_bytes = SIZE_MAX);
  std::vector<uint8_t> read(size_t offset, size_t bytes) const;
  uint64_t read_word(size_t offset) const;
  // Whether [offset, offset + bytes) holds what fill(seed) puts there.
  bool matches(uint8_t seed, size_t offset, size_t bytes) const;
  // Whether each byte is one that fill(seed) puts there, or 0.
  bool holds_only(uint8_t seed) const;

 private:
  void write(const std::vector<uint8_t>& data);

  Kind kind_;
  int gpu_;
  size_t bytes_;
  size_t mapped_bytes_ = 0;
  uint64_t address_ = 0;
  void map_piece(size_t offset, size_t bytes);

  std::vector<unsigned long long> handles_;
};

}  // namespace verbena::softverbs_test
