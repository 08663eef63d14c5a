// copy.cuh: every alignment of source and destination, every short length, long ones, at thread, warp and
// block scope; every byte and what lies around it.
#include "verbena/device/copy.cuh"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "device/emulator/sanitizer.h"
#include "device/emulator/world.h"
#include "device/support/guarded_buffer.h"
#include "device/support/random.h"
#include "device/support/run_kernel.h"

namespace verbena::device_test {
namespace {

constexpr uint32_t kVector = device::kVectorBytes;

std::vector<uint8_t> make_source(size_t length_bytes) {
  Random random(length_bytes);
  // Whole units around the source may be read.
  std::vector<uint8_t> bytes(length_bytes + 4 * kVector);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next());
  return bytes;
}

uint8_t* align_up(uint8_t* address) {
  return address + (kVector - reinterpret_cast<uintptr_t>(address) % kVector) % kVector;
}

enum class Scope { kThread, kWarp, kBlock };
struct Case {
  const char* name;
  Scope scope;
  uint32_t threads;
};
void PrintTo(const Case& one, std::ostream* out) {
  *out << one.name;
}

void copy(Scope scope, void* destination, const void* source, size_t length_bytes) {
  if (scope == Scope::kThread) device::copy_thread(destination, source, length_bytes);
  if (scope == Scope::kWarp) device::copy_warp(destination, source, length_bytes);
  if (scope == Scope::kBlock) device::copy_block(destination, source, length_bytes);
}

class CopyTest : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Scopes, CopyTest,
                         testing::Values(Case{"thread", Scope::kThread, 1}, Case{"warp", Scope::kWarp, 32},
                                         Case{"block", Scope::kBlock, 96}),
                         [](const auto& one) { return std::string(one.param.name); });

// One run copies every length up to the longest, each to a different place.
void copy_short_lengths(const Case& how, uint32_t source_offset, uint32_t destination_offset, uint64_t seed) {
  constexpr uint32_t kLongest = 600;
  constexpr uint32_t kStride = 640;  // a multiple of the vector; the gaps stay untouched
  // A block is a warp and more: over all alignments it meets every length too.
  const uint32_t step = emulator::kSanitizer ? 37 : how.scope == Scope::kBlock ? 7 : 1;
  const uint32_t first = (source_offset + destination_offset) % step;
  std::vector<uint8_t> storage = make_source(kLongest + kVector);
  const uint8_t* source = align_up(storage.data()) + source_offset;
  GuardedBuffer destination(size_t{kStride} * (kLongest + 1), destination_offset);
  emulator::run_kernel(seed, 1, how.threads, [&] {
    for (uint32_t length = first; length <= kLongest; length += step) {
      copy(how.scope, destination.data() + size_t{length} * kStride, source, length);
    }
  });
  std::vector<uint8_t> expected(destination.length_bytes(), kUntouched);
  for (uint32_t length = first; length <= kLongest; length += step) {
    memcpy(expected.data() + size_t{length} * kStride, source, length);
  }
  ASSERT_EQ(destination.compare(expected), "");
}

TEST_P(CopyTest, EveryAlignmentAndShortLength) {
  const uint32_t step = emulator::kSanitizer ? 5 : 1;
  for (uint32_t source_offset = 0; source_offset < kVector; source_offset += step) {
    for (uint32_t destination_offset = 0; destination_offset < kVector; destination_offset += step) {
      SCOPED_TRACE("source + " + std::to_string(source_offset) + ", destination + " +
                   std::to_string(destination_offset));
      copy_short_lengths(GetParam(), source_offset, destination_offset,
                         16 * source_offset + destination_offset);
      if (HasFatalFailure()) return;
    }
  }
}

void copy_long(const Case& how, size_t length_bytes, uint32_t source_offset, uint32_t destination_offset) {
  std::vector<uint8_t> storage = make_source(length_bytes + kVector);
  const uint8_t* source = align_up(storage.data()) + source_offset;
  GuardedBuffer destination(length_bytes, destination_offset);
  emulator::run_kernel(0, 1, how.threads, [&] { copy(how.scope, destination.data(), source, length_bytes); });
  ASSERT_EQ(destination.compare(std::vector<uint8_t>(source, source + length_bytes)), "") << length_bytes;
}

TEST_P(CopyTest, LongLengths) {
  std::vector<size_t> lengths;
  const size_t longest = emulator::kSanitizer ? 1 << 14 : 1 << 20;
  for (size_t around = 1024; around <= longest; around *= 2) {
    lengths.insert(lengths.end(), {around - 1, around, around + 1, around + 17});
  }
  for (const size_t length : lengths) {
    Random random(length);
    copy_long(GetParam(), length, random.between(0, 15), random.between(0, 15));
    ASSERT_NO_FATAL_FAILURE(copy_long(GetParam(), length, 0, 0));
  }
}

TEST_P(CopyTest, FourMebibytes) {
  if (emulator::kSanitizer) GTEST_SKIP() << "nothing new for the sanitizer";
  constexpr size_t k4MiB = size_t{4} << 20;
  copy_long(GetParam(), k4MiB, 0, 0);
  if (GetParam().scope != Scope::kThread) copy_long(GetParam(), k4MiB + 1, 3, 14);
}

// A vector's 16 offsets, against memcpy of the same bytes.
TEST(RealignTest, TakesSixteenBytesAtEveryShift) {
  alignas(16) uint8_t bytes[32];
  for (uint32_t i = 0; i < 32; ++i) bytes[i] = static_cast<uint8_t>(7 * i + 1);
  device::Vector16 low, high;
  memcpy(&low, bytes, 16);
  memcpy(&high, bytes + 16, 16);
  for (uint32_t shift = 0; shift < kVector; ++shift) {
    const device::Vector16 got = device::detail::realign(low, high, shift);
    EXPECT_EQ(memcmp(&got, bytes + shift, 16), 0) << shift;
  }
}

}  // namespace
}  // namespace verbena::device_test
