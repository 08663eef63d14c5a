#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace verbena::softverbs_test {

// Memory of each kind that an application may register, made with CUDA's driver found at run time.
enum class Kind {
  kPageable,    // malloc
  kPinned,      // cuMemHostAlloc
  kDevice,      // cuMemAlloc: exported by IPC
  kExportable,  // cuMemCreate with a descriptor handle, as NCCL allocates
  kPrivate,     // cuMemCreate without handle: no other process can map it
};
inline constexpr Kind kKinds[] = {Kind::kPageable, Kind::kPinned, Kind::kDevice, Kind::kExportable,
                                  Kind::kPrivate};
const char* get_name(Kind kind);
inline bool is_on_gpu(Kind kind) {
  return kind != Kind::kPageable && kind != Kind::kPinned;
}

// How many GPUs this process sees; 0 without CUDA. Call only in a process that will not fork any more.
int count_gpus();

// Whether this process sees any, asked in a forked process: the caller may still fork.
bool has_gpu_somewhere();

// From now on the stand-in for CUDA refuses all asynchronous copies of this process but the next few. False
// where a real driver is loaded.
bool refuse_copies_after(int copies);

// Asynchronous copies of this process do not begin while the stand-in holds them. False as above.
bool hold_copies(bool is_held);

// How often this process has asked the stand-in for CUDA to copy, all calls and those for many copies at a
// time. All zero where a real driver is loaded.
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
  unsigned long long handle_ = 0;
};

}  // namespace verbena::softverbs_test
