#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace verbena::tools::unpack {

enum class BouncePlace : uint8_t { kGpu, kHost };

// How a message is split: pages of one length, of random lengths of 2, 4, 16 and 64 KiB, or of any length
// from 0 to 8191 bytes, without alignment.
struct PageLengths {
  enum class Kind : uint8_t { kFixed, kMixed, kRagged };
  Kind kind = Kind::kFixed;
  uint32_t fixed_bytes = 4096;

  std::string describe() const;
  uint32_t largest_bytes() const;
  bool operator==(const PageLengths&) const = default;
};

// One point of a sweep: the data and the number of threads, for any kernel.
struct TestCase {
  PageLengths pages;
  uint64_t slice_bytes = 524288;
  uint32_t source_align = 0;       // of each page's first byte, modulo 16
  uint32_t destination_align = 0;  // of the message's first byte, modulo 16
  uint32_t slots = 16;
  uint32_t at_once = 1;  // messages that one call unpacks
  uint32_t blocks = 8;
  uint32_t threads = 512;
  BouncePlace bounce = BouncePlace::kGpu;

  std::string describe() const;
  bool operator==(const TestCase&) const = default;
};

// The lists of the command line; every combination is a case.
struct Sweep {
  std::vector<PageLengths> pages{{}};
  std::vector<uint64_t> slices_bytes{524288};
  std::vector<uint32_t> source_aligns{0};
  std::vector<uint32_t> destination_aligns{0};
  std::vector<uint32_t> slots{16};
  std::vector<uint32_t> at_once{1};
  std::vector<uint32_t> blocks{8, 132};
  std::vector<uint32_t> threads{512};
  std::vector<BouncePlace> bounces{BouncePlace::kGpu};
};

std::vector<TestCase> list_cases(const Sweep& sweep);

// Returns the cases that have target figures: with 8 blocks, and with `all_blocks`, which fill the GPU.
std::vector<TestCase> list_target_cases(uint32_t all_blocks);

}  // namespace verbena::tools::unpack
