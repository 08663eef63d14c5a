// Addresses and memory apart. A range of addresses is reserved first; pieces of memory, a GPU's or the
// host's, are mapped into it, and processes of one host pass each other pieces as file descriptors. GPU
// memory by CUDA's virtual memory management, the host's by memfd. Objects are movable, not thread safe, and
// may be destroyed on any thread, with or without a CUDA context; no kernel uses what is destroyed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/cuda_driver.h"
#include "base/file_descriptor.h"
#include "base/status.h"

namespace verbena::base {

// Whose memory: the GPU's of this ordinal, or the host's (kNoGpu).
struct MemoryOwner {
  int gpu = kNoGpu;
};

// Addresses and lengths of pieces are multiples of this.
Result<uint64_t> measure_granularity(MemoryOwner owner);

// Reserved addresses, with nothing behind them. Everything mapped in it goes first.
class AddressRange {
 public:
  static Result<AddressRange> reserve(MemoryOwner owner, uint64_t length_bytes);
  AddressRange() = default;
  AddressRange(AddressRange&& other) noexcept;
  AddressRange& operator=(AddressRange&& other) noexcept;
  ~AddressRange();

  std::byte* begin() const { return begin_; }
  uint64_t length_bytes() const { return length_bytes_; }

 private:
  MemoryOwner owner_;
  std::byte* begin_ = nullptr;
  uint64_t length_bytes_ = 0;
};

// Memory without an address. It lives until its last owner in any process and its last mapping have gone.
class MemoryPiece {
 public:
  // Its contents are the driver's leavings: fill_zero() after mapping. The host's are zero.
  static Result<MemoryPiece> allocate(MemoryOwner owner, uint64_t length_bytes);
  // What another process has shared; `length_bytes` as it says. The descriptor stays the caller's.
  static Result<MemoryPiece> open(MemoryOwner owner, int descriptor, uint64_t length_bytes);
  MemoryPiece() = default;
  MemoryPiece(MemoryPiece&& other) noexcept;
  MemoryPiece& operator=(MemoryPiece&& other) noexcept;
  ~MemoryPiece();

  uint64_t length_bytes() const { return length_bytes_; }
  MemoryOwner owner() const { return owner_; }
  // For processes of this host; independent of this object's life.
  Result<FileDescriptor> share() const;

 private:
  friend class MappedPiece;
  friend Result<struct FoundPiece> find_piece(const void* address);

  MemoryOwner owner_;
  uint64_t length_bytes_ = 0;
  unsigned long long handle_ = 0;  // CUDA's
  FileDescriptor file_;            // the host's
};

// The piece that an address of this process lies in.
struct FoundPiece {
  MemoryPiece piece;
  std::byte* begin = nullptr;  // of the piece's mapping here
};
// kInvalidUsage for memory that cannot be shared: cudaMalloc's, the host's, pieces made without a POSIX
// descriptor.
Result<FoundPiece> find_piece(const void* address);

// A piece at an address of a range: read and written by the CPU (host memory) or by the GPU of `user`.
class MappedPiece {
 public:
  static Result<MappedPiece> map(const MemoryPiece& piece, MemoryOwner user, std::byte* address);
  MappedPiece() = default;
  MappedPiece(MappedPiece&& other) noexcept;
  MappedPiece& operator=(MappedPiece&& other) noexcept;
  ~MappedPiece();

  std::byte* begin() const { return begin_; }
  uint64_t length_bytes() const { return length_bytes_; }
  // For NICs that want one; empty where the driver has none for this memory.
  FileDescriptor export_dmabuf() const;

 private:
  MemoryOwner user_;
  std::byte* begin_ = nullptr;
  uint64_t length_bytes_ = 0;
};

// What the CPU (host memory) or the GPU of `user`, whose context is current, has an address for, whoever
// mapped it; returns when it is done.
Outcome fill_zero(MemoryOwner user, std::byte* begin, uint64_t length_bytes);

}  // namespace verbena::base
