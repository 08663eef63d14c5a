// Manages addresses and memory separately: reserve a range of addresses first, then map pieces of GPU or host
// memory into it. Processes of one host pass pieces to each other as file descriptors. GPU memory comes from
// CUDA's virtual memory management, host memory from memfd. Objects are movable and not thread safe. They may
// be destroyed on any thread, with or without a CUDA context; the caller ensures that no kernel still uses
// the memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cuda_driver.h"
#include "base/file_descriptor.h"
#include "base/movable.h"
#include "base/status.h"

namespace verbena::base {

// The owner of memory: the GPU with this ordinal, or the host (kNoGpu).
struct MemoryOwner {
  int gpu = kNoGpu;
};

// Returns the granularity: addresses and lengths of pieces must be multiples of it.
Result<uint64_t> measure_granularity(MemoryOwner owner);

// Reserved addresses without memory. Destroy everything that is mapped in the range before the range itself.
class AddressRange {
 public:
  static Result<AddressRange> reserve(MemoryOwner owner, uint64_t length_bytes);
  AddressRange() = default;
  AddressRange(AddressRange&&) noexcept = default;
  AddressRange& operator=(AddressRange&&) noexcept = default;
  ~AddressRange();

  std::byte* begin() const { return begin_; }
  uint64_t length_bytes() const { return length_bytes_; }

 private:
  Movable<MemoryOwner> owner_;
  Movable<std::byte*> begin_;
  Movable<uint64_t> length_bytes_;
};

// Memory without an address. It is freed when no process owns it and it is not mapped.
class MemoryPiece {
 public:
  // Host memory is zero. GPU memory is not initialised: call fill_zero() after mapping it.
  static Result<MemoryPiece> allocate(MemoryOwner owner, uint64_t length_bytes);
  // Opens a piece that another process shared. `length_bytes` is the length that the other process announced;
  // it is verified for host memory. The caller keeps the descriptor.
  static Result<MemoryPiece> open(MemoryOwner owner, int descriptor, uint64_t length_bytes);
  MemoryPiece() = default;
  MemoryPiece(MemoryPiece&&) noexcept = default;
  MemoryPiece& operator=(MemoryPiece&&) noexcept = default;
  ~MemoryPiece();

  uint64_t length_bytes() const { return length_bytes_; }
  MemoryOwner owner() const { return owner_; }
  // Returns whether both are parts of one allocation, for which the driver has one handle in this process.
  bool is_same(const MemoryPiece& other) const { return handle_ == other.handle_; }
  // CUDA's handle, which this object owns; 0 for host memory.
  unsigned long long handle() const { return handle_; }
  // Returns a descriptor for other processes of this host. The descriptor may outlive this object.
  Result<FileDescriptor> share() const;

 private:
  friend class MappedPiece;
  friend Result<struct FoundPiece> find_piece(const void* address);

  Movable<MemoryOwner> owner_;
  Movable<uint64_t> length_bytes_;
  Movable<unsigned long long> handle_;  // CUDA's
  FileDescriptor file_;                 // the host's
};

// The piece that contains an address of this process.
struct FoundPiece {
  MemoryPiece piece;
  std::byte* begin = nullptr;  // where this process has mapped it
};
// Fails with Status::kInvalidUsage for memory that cannot be shared: memory of cudaMalloc, host memory, or a
// piece without a POSIX descriptor.
Result<FoundPiece> find_piece(const void* address);

// A piece that is mapped at an address in a range: host memory for the CPU, or GPU memory for the GPU of
// `user`.
class MappedPiece {
 public:
  static Result<MappedPiece> map(const MemoryPiece& piece, MemoryOwner user, std::byte* address);
  MappedPiece() = default;
  MappedPiece(MappedPiece&&) noexcept = default;
  MappedPiece& operator=(MappedPiece&&) noexcept = default;
  ~MappedPiece();

  std::byte* begin() const { return begin_; }
  uint64_t length_bytes() const { return length_bytes_; }
  // Returns a DMA-BUF descriptor for NICs; empty if the driver exports none for this memory.
  FileDescriptor export_dmabuf() const;

 private:
  Movable<MemoryOwner> user_;
  Movable<std::byte*> begin_;
  Movable<uint64_t> length_bytes_;
};

// Fills mapped memory with zeros, and waits for the end. The memory is mapped for the CPU, or for the GPU of
// `user`, whose context must be current. Any code may have mapped it.
Outcome fill_zero(MemoryOwner user, std::byte* begin, uint64_t length_bytes);
// Reads such memory, on any thread, with or without a CUDA context, even while kernels write to it. Each byte
// has the value that it had at some moment during the call.
Outcome read_memory(MemoryOwner user, const std::byte* begin, void* to, uint64_t length_bytes);

}  // namespace verbena::base
