// The expected value of each byte of a run's buffers. C++17, host and GPU.
#pragma once
#include "common/pattern_word.h"
#include "verbena-bench/unpack/unpack_run.h"

namespace verbena::tools::unpack {

// The eight bytes at `offset_bytes`, a multiple of 8 from the start of a message's buffer: guard bytes, bytes
// of the message, or both.
constexpr uint64_t compute_expected_word(const UnpackRun& run, uint64_t message, uint64_t offset_bytes) {
  const uint64_t begin = kGuardBeforeBytes + run.destination_offset_bytes;
  const uint64_t end = begin + run.slice_bytes;
  if (offset_bytes + 8 <= begin || offset_bytes >= end) return kGuardWord;
  const uint64_t seed = compute_pattern_seed(message);
  if (offset_bytes >= begin && offset_bytes + 8 <= end) return compute_pattern_at(seed, offset_bytes - begin);
  uint64_t word = 0;
  for (uint64_t byte = 0; byte < 8; ++byte) {
    const uint64_t at = offset_bytes + byte;
    const bool inside = at >= begin && at < end;
    const uint64_t value = inside ? compute_pattern_at(seed, at - begin) & 0xff : kGuardWord & 0xff;
    word |= value << 8 * byte;
  }
  return word;
}

constexpr uint32_t count_different_bytes(uint64_t left, uint64_t right) {
  uint32_t count = 0;
  for (uint64_t difference = left ^ right; difference != 0; difference >>= 8)
    count += (difference & 0xff) != 0;
  return count;
}

}  // namespace verbena::tools::unpack
