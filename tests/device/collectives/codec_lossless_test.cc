// The lossless codec on emulated warps, beside a plain reader of its messages: every pattern of bits comes
// out as it went in, in tiles of every mix and length; each message has the length that the format promises;
// and a message of anything else is read without leaving its memory.
#include "verbena/device/collectives/codec_lossless.cuh"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "device/emulator/sanitizer.h"
#include "device/support/random.h"
#include "device/support/run_kernel.h"

namespace verbena::device_test {
namespace {

using device::kTileElements;
using device::LosslessTiles;

// Of an element: bfloat16, or float.
template <uint32_t kBytes>
using Bits = std::conditional_t<kBytes == 2, uint16_t, uint32_t>;
template <uint32_t kBytes>
using Tensor = std::vector<Bits<kBytes>>;

constexpr uint8_t kStale = 0xee;  // of an earlier message
constexpr uint64_t kGuardBytes = 64;

struct alignas(16) Vector {
  char bytes[16];
};

template <uint32_t kBytes>
uint32_t widen(Bits<kBytes> bits) {
  return kBytes == 2 ? uint32_t{bits} << 16 : uint32_t{bits};
}
template <uint32_t kBytes>
uint32_t count_of_tile(size_t elements, size_t tile) {
  return static_cast<uint32_t>(std::min<size_t>(kTileElements, elements - tile * kTileElements));
}

// ---- The format, written plainly ----

struct Layout {
  uint32_t groups, escapes, bytes;  // groups of 4 bits for each element; 0: a tile of zeros
};
uint32_t find_top(const std::vector<uint32_t>& words) {
  uint32_t top = 0;
  for (const uint32_t word : words)
    if ((word >> 23 & 0xff) != 0xff) top = std::max(top, word >> 23 & 0xff);
  return top;
}
bool is_escape(uint32_t word, uint32_t top, uint32_t mantissa_bits) {
  const uint32_t exponent = word >> 23 & 0xff;
  if ((word & ((1U << (23 - mantissa_bits)) - 1)) != 0) return true;
  return exponent != 0 && (exponent > top || exponent + 13 < top);
}
// The shortest layout of a tile.
template <uint32_t kBytes>
Layout choose_layout(const std::vector<uint32_t>& words) {
  if (std::all_of(words.begin(), words.end(), [](uint32_t word) { return word == 0; })) return {0, 0, 0};
  const auto units = static_cast<uint32_t>((words.size() + 7) / 8);
  const uint32_t most = kBytes * 2;
  Layout best{most, 0, most * units * 4};
  for (uint32_t groups = 3; groups < most; ++groups) {
    const auto escapes = static_cast<uint32_t>(std::count_if(words.begin(), words.end(), [&](uint32_t word) {
      return is_escape(word, find_top(words), 4 * groups - 5);
    }));
    const uint32_t bytes = (groups * units * 4 + escapes * (kBytes == 2 ? 1 : 4) + 15) / 16 * 16;
    if (bytes < best.bytes) best = {groups, escapes, bytes};
  }
  return best;
}
uint32_t read_32(const char* from) {
  uint32_t word = 0;
  std::memcpy(&word, from, sizeof(word));
  return word;
}
// The tile's elements, out of a message.
template <uint32_t kBytes>
std::vector<uint32_t> read_tile(const char* message, size_t elements, size_t tile) {
  const uint32_t count = count_of_tile<kBytes>(elements, tile), units = (count + 7) / 8;
  std::vector<uint32_t> words(count);
  const char* const at = message + uint64_t{read_32(message + 8 * (tile + 1))} * 16;
  const uint32_t about = read_32(message + 8 * (tile + 1) + 4);
  const uint32_t top = about & 0xff, groups = about >> 8 & 0xff;
  if (groups == 0) return words;
  const auto get = [&](uint32_t group, uint32_t element) {
    const uint32_t unit = element / 8, row = unit / 32, lane = unit % 32;
    const uint32_t word = units == kTileElements / 8 ? lane * 4 + row : unit;
    return read_32(at + (group * units + word) * 4) >> element % 8 * 4 & 15;
  };
  const bool is_raw = groups == kBytes * 2;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t code = get(0, i), first = get(1, i);
    words[i] = (first & 8) << 28 | (first & 7) << 20;
    for (uint32_t group = 2; group < std::min(groups, kBytes * 2 - 1); ++group)
      words[i] |= get(group, i) << (24 - 4 * group);
    words[i] |= (is_raw ? code | get(groups - 1, i) << 4 : code < 14 ? top - code : 0) << 23;
  }
  // Escapes: lane after lane, as a warp has the elements.
  const char* next = at + groups * units * 4;
  for (uint32_t lane = 0; lane < 32 && !is_raw; ++lane) {
    for (uint32_t k = 0; k < 32; ++k) {
      const uint32_t i = (k / 8 * 32 + lane) * 8 + k % 8;
      if (i >= count || get(0, i) != 15) continue;
      if (kBytes == 2) {
        words[i] |= static_cast<uint32_t>(static_cast<uint8_t>(*next)) << 23;
      } else {
        words[i] = read_32(next);
      }
      next += kBytes == 2 ? 1 : 4;
    }
  }
  return words;
}

// ---- On the emulated GPU ----

template <uint32_t kBytes>
struct Coded {
  std::vector<Vector> memory;
  uint64_t length_bytes = 0;

  const char* bytes() const { return memory.front().bytes; }
};

// Encodes and decodes, by some warps. `offset`: elements from a multiple of 16 bytes.
template <uint32_t kBytes>
Coded<kBytes> encode(const Tensor<kBytes>& tensor, uint32_t warps = 1, uint32_t offset = 0) {
  const auto count = static_cast<uint32_t>(tensor.size());
  const uint64_t most = LosslessTiles<kBytes>::max_bytes(count);
  Coded<kBytes> coded{std::vector<Vector>((most + kGuardBytes) / 16)};
  std::memset(coded.memory.data(), kStale, most + kGuardBytes);
  std::vector<Vector> input((count + offset) * kBytes / 16 + 2);
  char* const from = input.front().bytes + offset * kBytes;
  std::memcpy(from, tensor.data(), count * kBytes);
  emulator::run_kernel(count, 1, 32 * warps, [&] {
    const LosslessTiles<kBytes> message(coded.memory.front().bytes, count);
    message.begin(device::BlockGroup{});
    device::sync_block();
    for (uint32_t tile = device::thread_index() / 32; tile < message.tiles(); tile += warps) {
      device::TileWords words;
      device::load_tile_words<kBytes>(static_cast<const char*>(from), tile, count * kBytes, words);
      message.store(tile, words);
    }
    device::sync_block();
    if (device::thread_index() == 0) coded.length_bytes = message.length_bytes();
  });
  for (uint64_t i = coded.length_bytes; i < most + kGuardBytes; ++i) {
    if (static_cast<uint8_t>(coded.bytes()[i]) == kStale) continue;
    ADD_FAILURE() << "a byte behind the message of " << count << " elements";
    break;
  }
  return coded;
}
template <uint32_t kBytes>
Tensor<kBytes> decode(const char* coded, size_t elements, uint32_t offset = 0) {
  const auto count = static_cast<uint32_t>(elements);
  std::vector<Vector> output((count + offset) * kBytes / 16 + 3);
  char* const to = output.front().bytes + offset * kBytes;
  std::memset(output.data(), 0x5a, output.size() * 16);
  emulator::run_kernel(count, 1, 32, [&] {
    const LosslessTiles<kBytes, const char> message(coded, count);
    for (uint32_t tile = 0; tile < message.tiles(); ++tile) {
      device::TileWords words;
      message.load(tile, words);
      device::store_tile_words<kBytes>(to, tile, count * kBytes, words);
    }
  });
  for (const char* byte = output.front().bytes; byte < output.back().bytes + 16; ++byte)
    if ((byte < to || byte >= to + count * kBytes) && *byte != 0x5a) ADD_FAILURE() << "beside the tensor";
  Tensor<kBytes> tensor(elements);
  std::memcpy(tensor.data(), to, count * kBytes);
  return tensor;
}

// Returns the message's length.
template <uint32_t kBytes>
uint64_t check(const Tensor<kBytes>& tensor, uint32_t warps = 1, uint32_t offset = 0) {
  const Coded<kBytes> coded = encode<kBytes>(tensor, warps, offset);
  EXPECT_TRUE((decode<kBytes>(coded.bytes(), tensor.size(), offset) == tensor))
      << tensor.size() << " elements";
  const size_t tiles = (tensor.size() + kTileElements - 1) / kTileElements;
  uint64_t expected = (8 * (tiles + 1) + 15) / 16 * 16;
  for (size_t tile = 0; tile < tiles; ++tile) {
    std::vector<uint32_t> words(count_of_tile<kBytes>(tensor.size(), tile));
    for (size_t i = 0; i < words.size(); ++i) words[i] = widen<kBytes>(tensor[tile * kTileElements + i]);
    expected += choose_layout<kBytes>(words).bytes;
    if (read_tile<kBytes>(coded.bytes(), tensor.size(), tile) != words)
      ADD_FAILURE() << "tile " << tile << " of " << tensor.size() << " elements reads differently";
  }
  EXPECT_EQ(coded.length_bytes, expected) << tensor.size() << " elements";
  const uint64_t padded = (tensor.size() + 7) / 8 * 8 * kBytes;
  EXPECT_LE(coded.length_bytes, padded + 8 * tiles + 24) << "the promise of the header";
  return coded.length_bytes;
}

template <typename Size>
class LosslessCodec : public testing::Test {};
using Sizes = testing::Types<std::integral_constant<uint32_t, 2>, std::integral_constant<uint32_t, 4>>;
TYPED_TEST_SUITE(LosslessCodec, Sizes);

// bfloat16 bits as an element of either size.
template <uint32_t kBytes>
Bits<kBytes> make(uint32_t bfloat16, uint32_t low = 0) {
  return static_cast<Bits<kBytes>>(kBytes == 2 ? bfloat16 : bfloat16 << 16 | low);
}
float draw_normal(Random& random) {
  float sum = 0;
  for (int i = 0; i < 12; ++i) sum += static_cast<float>(random.between(0, 1U << 24)) * 0x1p-24F;
  return sum - 6;
}
uint32_t round_to_bfloat16(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// In the order of their bits, where a tile has eight exponents, and shuffled, where it has all.
TYPED_TEST(LosslessCodec, CarriesEveryPatternOfBits) {
  constexpr uint32_t kBytes = TypeParam::value;
  Tensor<kBytes> tensor;
  for (uint32_t bits = 0; bits < 0x10000; ++bits)
    tensor.push_back(make<kBytes>(bits, bits * 0x9e37 & 0xffff));
  check<kBytes>(tensor, 4);
  Random random(1);
  for (size_t i = tensor.size() - 1; i > 0; --i)
    std::swap(tensor[i], tensor[random.between(0, static_cast<uint32_t>(i))]);
  check<kBytes>(tensor, 4);
}

// Each exponent is once the largest of a tile that has all others, or those below it, too.
TYPED_TEST(LosslessCodec, CarriesEveryExponentBelowEveryOther) {
  constexpr uint32_t kBytes = TypeParam::value;
  Tensor<kBytes> tensor;
  for (uint32_t top = 0; top < 256; ++top) {
    for (uint32_t i = 0; i < kTileElements; ++i) {
      const uint32_t exponent = i % 3 == 0 ? i % (top + 1) : top - std::min(top, i % 15);
      tensor.push_back(make<kBytes>((i * 37 & 0x7f) | exponent << 7 | (i & 1) << 15));
    }
  }
  check<kBytes>(tensor, 4);
}

// One in each lane, then one in the tile.
TYPED_TEST(LosslessCodec, CarriesAnEscapeAtEveryPosition) {
  constexpr uint32_t kBytes = TypeParam::value;
  constexpr uint32_t kStride = 32;
  Tensor<kBytes> tensor;
  const auto add = [&](const auto& is_escape) {
    for (uint32_t i = 0; i < kTileElements; ++i)
      tensor.push_back(make<kBytes>(!is_escape(i) ? 0x3f80 : i % 2 == 0 ? 0x0081 : 0xffc1, i));
  };
  for (uint32_t tile = 0; tile < kStride; ++tile) add([&](uint32_t i) { return i % kStride == tile; });
  for (uint32_t at = 0; at < kTileElements; at += 93) add([&](uint32_t i) { return i == at; });
  check<kBytes>(tensor, 4);
}

// From none to all, and so beyond the number that makes a tile raw.
TYPED_TEST(LosslessCodec, CarriesAnyNumberOfEscapes) {
  constexpr uint32_t kBytes = TypeParam::value;
  Tensor<kBytes> tensor;
  for (const uint32_t escapes :
       {0, 1, 2, 15, 16, 17, 255, 256, 495, 496, 497, 511, 512, 513, 895, 896, 1022, 1023, 1024}) {
    for (uint32_t i = 0; i < kTileElements; ++i)
      tensor.push_back(i * 389 % kTileElements < escapes ? make<kBytes>(0x7f80 | (i & 0x7f), i)
                                                         : make<kBytes>(0x4000 | (i & 0x1ff)));
  }
  check<kBytes>(tensor);
}

TYPED_TEST(LosslessCodec, CarriesTensorsOfAnyLength) {
  constexpr uint32_t kBytes = TypeParam::value;
  Random random(2);
  for (uint32_t count = 1; count <= kTileElements + 9; count += emulator::kSanitizer ? 61 : 1) {
    Tensor<kBytes> tensor;
    for (uint32_t i = 0; i < count; ++i)
      tensor.push_back(
          make<kBytes>(i % 50 == 49 ? random.between(0, 0xffff) : round_to_bfloat16(draw_normal(random))));
    check<kBytes>(tensor);
    if (this->HasFailure()) return;
  }
  for (const uint32_t count : {5000U, 3 * kTileElements + 255, 7 * kTileElements}) {
    for (const uint32_t offset : {0, 1, 3}) {
      Tensor<kBytes> tensor(count);
      for (auto& element : tensor) element = static_cast<Bits<kBytes>>(random.next());
      check<kBytes>(tensor, 3, offset);
    }
  }
}

// Random bits; NaNs with payloads; denormal elements; zeros of both signs; one infinity; nothing but zeros.
TYPED_TEST(LosslessCodec, IsNeverLongerThanItsHeaderPromises) {
  constexpr uint32_t kBytes = TypeParam::value;
  constexpr uint32_t kCount = 8 * kTileElements;
  Random random(3);
  const auto measure = [&](const auto& draw) {
    Tensor<kBytes> tensor(kCount);
    for (auto& element : tensor) element = static_cast<Bits<kBytes>>(draw());
    return check<kBytes>(tensor, 2);
  };
  const auto draw = [&] { return static_cast<uint32_t>(random.next()); };
  constexpr uint64_t kHead = 80, kRaw = uint64_t{kCount} * kBytes;
  EXPECT_EQ(measure(draw), kHead + kRaw);
  EXPECT_EQ(measure([&] { return make<kBytes>(0x7f80 | (draw() & 0x807f), draw() & 0xffff); }), kHead + kRaw);
  EXPECT_EQ(measure([&] { return make<kBytes>(draw() & 0x807f); }), kHead + kCount * 12 / 8);
  EXPECT_EQ(measure([&] { return make<kBytes>(draw() & 0x8000); }), kHead + kCount * 12 / 8);
  EXPECT_EQ(measure([&] { return make<kBytes>(0x3f80 | (draw() & 0x807f)); }), kHead + kCount * 12 / 8);
  EXPECT_EQ(measure([] { return 0; }), kHead);
}

TEST(LosslessRatio, OfElementsAndOfSums) {
  Random random(4);
  constexpr uint32_t kCount = 64 * kTileElements;
  Tensor<2> elements;
  for (uint32_t i = 0; i < kCount; ++i)
    elements.push_back(static_cast<uint16_t>(round_to_bfloat16(draw_normal(random))));
  const double ratio = kCount * 2.0 / static_cast<double>(check<2>(elements, 4));
  EXPECT_GT(ratio, 1.31);
  EXPECT_LT(ratio, 4.0 / 3);
  for (const auto& [addends, expected] : {std::pair{2, 1.75}, {4, 1.5}, {8, 1.4}}) {
    Tensor<4> sums;
    for (uint32_t i = 0; i < kCount; ++i) {
      float sum = 0;
      for (int k = 0; k < addends; ++k) {
        const uint32_t bits = round_to_bfloat16(draw_normal(random)) << 16;
        float addend = 0;
        std::memcpy(&addend, &bits, sizeof(bits));
        sum += addend;
      }
      std::memcpy(&sums.emplace_back(), &sum, sizeof(sum));
    }
    EXPECT_GT(kCount * 4.0 / static_cast<double>(check<4>(sums, 4)), expected) << addends << " addends";
  }
}

// A message that ends where memory ends.
class LastMessage {
 public:
  explicit LastMessage(uint64_t length_bytes) : pages_bytes_((length_bytes + kPage - 1) / kPage * kPage) {
    begin_ = static_cast<char*>(
        mmap(nullptr, pages_bytes_ + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(mprotect(begin_, pages_bytes_, PROT_READ | PROT_WRITE), 0);
    message_ = begin_ + pages_bytes_ - length_bytes;
  }
  ~LastMessage() { munmap(begin_, pages_bytes_ + kPage); }
  LastMessage(const LastMessage&) = delete;
  LastMessage& operator=(const LastMessage&) = delete;
  char* bytes() const { return message_; }

 private:
  static constexpr uint64_t kPage = 4096;
  const uint64_t pages_bytes_;
  char *begin_, *message_;
};

// From a peer that sends anything.
TYPED_TEST(LosslessCodec, ReadsNothingOutsideOfAMessageOfAnything) {
  constexpr uint32_t kBytes = TypeParam::value;
  Random random(5);
  for (int run = 0; run < (emulator::kSanitizer ? 40 : 400); ++run) {
    const uint32_t count = random.between(1, 2 * kTileElements + 40);
    Tensor<kBytes> tensor(count);
    for (auto& element : tensor)
      element = make<kBytes>(random.between(0, 40) == 0 ? 0 : round_to_bfloat16(draw_normal(random)));
    const Coded<kBytes> coded = encode<kBytes>(tensor);
    const uint64_t most = LosslessTiles<kBytes>::max_bytes(count);
    const LastMessage last(most);
    std::memcpy(last.bytes(), coded.bytes(), most);
    // All of it, or a byte of the headers; or an escape for each element behind headers of few.
    const uint64_t head = 8 * (LosslessTiles<kBytes>::count_tiles(count) + 1);
    const uint64_t begin = run % 3 == 0   ? 0
                           : run % 3 == 1 ? random.between(0, static_cast<uint32_t>(head - 1))
                                          : head;
    const uint64_t end = run % 3 == 1 ? begin + 1 : most;
    for (uint64_t i = begin; i < end; ++i)
      last.bytes()[i] = static_cast<char>(run % 3 == 2 ? 0xff : random.next());
    if (run % 3 == 2) {
      const uint64_t last_tile = head - 8, units = (count_of_tile<kBytes>(count, last_tile / 8 - 1) + 7) / 8;
      const auto at = static_cast<uint32_t>(most / 16 - (units * 12 + 16 + 15) / 16);
      const uint32_t about = 0x7f | 3 << 8 | 1 << 16;
      std::memcpy(last.bytes() + last_tile, &at, sizeof(at));
      std::memcpy(last.bytes() + last_tile + 4, &about, sizeof(about));
    }
    (void)decode<kBytes>(last.bytes(), count);
  }
}

}  // namespace
}  // namespace verbena::device_test
