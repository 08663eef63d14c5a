#include "verbena-bench/unpack/layout.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "common/error.h"
#include "common/pattern_word.h"
#include "common/size.h"
#include "verbena-bench/unpack/expectation.h"

namespace verbena::tools::unpack {
namespace {

constexpr uint64_t kLineBytes = 128;
constexpr uint64_t kMaxBounceBytes = uint64_t{1} << 32;  // offsets have 32 bits
// A kernel may read whole 16-byte units around a piece, and the last piece is at the end of the memory.
constexpr uint64_t kBounceSlackBytes = 256;

uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Aligned pages are as dense as the plugin's; others need a few more bytes, because they start inside a page.
uint64_t compute_page_stride(const TestCase& test_case) {
  const uint64_t longest = std::min<uint64_t>(test_case.pages.largest_bytes(), test_case.slice_bytes);
  return round_up(longest + test_case.source_align, kLineBytes);
}

// A fixed generator: two runs have the same layout.
using Random = std::mt19937;

uint32_t choose_length(const PageLengths& pages, Random& random) {
  constexpr uint32_t kMixedBytes[] = {2048, 4096, 16384, 65536};
  const auto number = static_cast<uint32_t>(random());
  switch (pages.kind) {
    case PageLengths::Kind::kMixed:
      return kMixedBytes[number % std::size(kMixedBytes)];
    case PageLengths::Kind::kRagged:
      return number % 8 == 0 ? number / 8 % 32 : number / 8 % 8192;
    case PageLengths::Kind::kFixed:
      break;
  }
  return pages.fixed_bytes;
}

// The lengths of a slot's pages, in the order of the message.
std::vector<uint32_t> cut_slice(const TestCase& test_case, uint32_t slot) {
  Random random(slot + 1);
  std::vector<uint32_t> lengths;
  for (uint64_t left = test_case.slice_bytes; left != 0;) {
    const auto length =
        static_cast<uint32_t>(std::min<uint64_t>(choose_length(test_case.pages, random), left));
    lengths.push_back(length);
    left -= length;
  }
  return lengths;
}

uint64_t count_pages(const TestCase& test_case) {
  uint64_t pages = 0;
  for (uint32_t slot = 0; slot < test_case.slots; ++slot) {
    const uint64_t count = cut_slice(test_case, slot).size();
    if (count > static_cast<uint64_t>(kUnpackMaxDescriptors)) {
      throw ToolError("a slice of " + format_size(test_case.slice_bytes) + " in pages of " +
                      test_case.pages.describe() + " needs " + std::to_string(count) +
                      " descriptors, but a slot can have at most " + std::to_string(kUnpackMaxDescriptors));
    }
    pages += count;
  }
  return pages;
}

}  // namespace

UnpackRun plan_run(const TestCase& test_case, uint64_t footprint_bytes) {
  UnpackRun run;
  run.slice_bytes = test_case.slice_bytes;
  run.destination_offset_bytes = test_case.destination_align;
  run.connections = test_case.blocks;
  run.slots = test_case.slots;
  run.at_once = test_case.at_once;
  run.passes = 1;
  const uint64_t round_bytes = test_case.slice_bytes * test_case.slots * test_case.blocks;
  run.rounds = static_cast<uint32_t>(std::clamp<uint64_t>(
      round_bytes == 0 ? 1 : (footprint_bytes + round_bytes - 1) / round_bytes, 1, 4096));
  run.bounce_stride_bytes =
      round_up(count_pages(test_case) * compute_page_stride(test_case) + kBounceSlackBytes, kLineBytes);
  if (run.bounce_stride_bytes > kMaxBounceBytes)
    throw ToolError(
        "the bounce pages of a connection exceed the maximum of 4 GiB. Use smaller --sizes, --page or "
        "--slots");
  run.message_stride_bytes = round_up(
      kGuardBeforeBytes + test_case.destination_align + test_case.slice_bytes + kGuardAfterBytes, kLineBytes);
  return run;
}

void fill_queue(const TestCase& test_case, const UnpackRun& run, uint32_t connection, NetUnpackMeta& meta) {
  std::fill(std::begin(meta.cnt), std::end(meta.cnt), 0);
  const uint64_t page_stride_bytes = compute_page_stride(test_case);
  std::vector<uint32_t> places(count_pages(test_case));
  for (uint32_t place = 0; place < places.size(); ++place) places[place] = place;
  Random random(connection + 1);
  std::shuffle(places.begin(), places.end(), random);
  size_t page = 0;
  for (uint32_t slot = 0; slot < run.slots; ++slot) {
    uint64_t destination = run.destination_offset_bytes;
    for (const uint32_t length : cut_slice(test_case, slot)) {
      const uint64_t source = places[page++] * page_stride_bytes + test_case.source_align;
      meta.mem[slot][meta.cnt[slot]++] = LoadMeta{static_cast<uint32_t>(source), length, destination};
      destination += length;
    }
  }
}

void fill_bounce(const UnpackRun& run, std::span<std::byte> bounce, std::span<const NetUnpackMeta> queues) {
  std::fill(bounce.begin(), bounce.end(), static_cast<std::byte>(kUnusedWord & 0xff));
  for (uint32_t connection = 0; connection < run.connections; ++connection) {
    const NetUnpackMeta& meta = queues[connection];
    for (uint32_t round = 0; round < run.rounds; ++round) {
      std::byte* const region = bounce.data() + run.bounce_offset(connection, round);
      for (uint32_t slot = 0; slot < run.slots; ++slot) {
        const uint64_t seed = compute_pattern_seed(run.message_index(connection, round, slot));
        for (uint64_t index = 0; index < meta.cnt[slot]; ++index) {
          const LoadMeta& piece = meta.mem[slot][index];
          const uint64_t first = piece.dst_off - run.destination_offset_bytes;
          for (uint32_t byte = 0; byte < piece.len; ++byte)
            region[piece.src_off + byte] = static_cast<std::byte>(compute_pattern_at(seed, first + byte));
        }
      }
    }
  }
}

void fill_buffers(std::span<std::byte> buffers) {
  std::fill(buffers.begin(), buffers.end(), static_cast<std::byte>(kGuardWord & 0xff));
}

uint64_t count_wrong_bytes(const UnpackRun& run, std::span<const std::byte> buffers) {
  uint64_t wrong = 0;
  for (uint64_t message = 0; message < run.count_messages(); ++message) {
    const std::byte* const buffer = buffers.data() + message * run.message_stride_bytes;
    for (uint64_t offset = 0; offset < run.message_stride_bytes; offset += 8) {
      uint64_t word;
      std::memcpy(&word, buffer + offset, sizeof word);
      wrong += count_different_bytes(word, compute_expected_word(run, message, offset));
    }
  }
  return wrong;
}

}  // namespace verbena::tools::unpack
