#include "shared_memory.h"

#include <cstdlib>

#include "sanitizer.h"
#include "world.h"

namespace verbena::emulator {

namespace {

constexpr size_t kGuardBytes = 256;
constexpr char kGuardByte = '\x5c';
constexpr char kPoisonByte = '\xa5';

// Not memset, which the thread sanitizer would count as the running thread's write.
void fill(volatile char* start, char byte, size_t length_bytes) {
  for (size_t i = 0; i < length_bytes; ++i) start[i] = byte;
}

bool holds_guard(const char* start) {
  for (size_t i = 0; i < kGuardBytes; ++i) {
    if (start[i] != kGuardByte) return false;
  }
  return true;
}

}  // namespace

void* find_shared_memory(Block& block, const void* key, size_t length_bytes, size_t alignment_bytes) {
  size_t total_bytes = length_bytes;
  for (const SharedPiece& piece : block.shared) {
    if (piece.key == key) {
      if (piece.length_bytes != length_bytes) fail("one key, two lengths of shared memory");
      return piece.start;
    }
    total_bytes += piece.length_bytes;
  }
  if (total_bytes > kSharedMemoryBytes) fail(std::to_string(total_bytes) + " bytes of shared memory");
  if (alignment_bytes == 0 || kGuardBytes % alignment_bytes != 0) fail("alignment of shared memory");
  const IgnoreScope ignore;
  const size_t padded_bytes = (length_bytes + kGuardBytes - 1) / kGuardBytes * kGuardBytes;
  char* mapped = static_cast<char*>(aligned_alloc(kGuardBytes, padded_bytes + 2 * kGuardBytes));
  char* start = mapped + kGuardBytes;
  fill(mapped, kGuardByte, padded_bytes + 2 * kGuardBytes);
  fill(start, kPoisonByte, length_bytes);
  block.shared.push_back({key, length_bytes, mapped, start});
  return start;
}

std::string check_shared_memory_guards(const Block& block) {
  for (const SharedPiece& piece : block.shared) {
    if (holds_guard(piece.start - kGuardBytes) && holds_guard(piece.start + piece.length_bytes)) continue;
    return "gpu " + std::to_string(block.gpu) + " block " + std::to_string(block.number) +
           ": written beside a piece of shared memory of " + std::to_string(piece.length_bytes) + " bytes";
  }
  return {};
}

void release_shared_memory(Block& block) {
  for (const SharedPiece& piece : block.shared) free(piece.mapped);
  block.shared.clear();
}

}  // namespace verbena::emulator
