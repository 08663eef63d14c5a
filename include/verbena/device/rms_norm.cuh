// RMSNorm of a tensor's rows by a block: a residual added before it, its result also quantised, as inference
// engines do between an all-reduce and the next product.
//
//   h = x + residual              x: the row, rounded to T
//   residual_out = h
//   output = h / sqrt(mean(h^2) + epsilon) * (weight_offset + weight)
//   quantised = output as e4m3 or int8, with scales
//
// In float, in an order that depends on the row's length alone: a row has the same bits in every kernel, by
// any number of threads, wherever x comes from.
#ifndef VERBENA_DEVICE_RMS_NORM_CUH
#define VERBENA_DEVICE_RMS_NORM_CUH

#include "verbena/device/arithmetic.cuh"
#include "verbena/device/copy.cuh"
#include "verbena/device/group.cuh"

namespace verbena::device {

// What quantised rows are: one byte a number, and where their scales lie. A number is its byte times the
// scale.
enum class RowQuantisation : uint32_t {
  kNone = 0,
  kFloat8Tensor = 1,  // e4m3; one scale, which is given
  kFloat8Token = 2,   // e4m3; a float for each row: its largest magnitude / 448
  kFloat8Block = 3,   // e4m3; a float for each 128 numbers of a row
  // The same, but scales are powers of two, rounded up: as floats, or their exponents (UE8M0) alone, of four
  // blocks in a word.
  kFloat8BlockPower = 4,
  kFloat8BlockExponent = 5,
  kMxFloat8 = 6,          // e4m3; a byte of exponent (E8M0) for each 32 numbers
  kMxFloat8Swizzled = 7,  // the same in tiles of 128 rows of 4 scales, as matrix units read them
  kInt8Token = 8,         // a float for each row: its largest magnitude / 127
};

// Rows as they are quantised. Scales of block b of row r lie at r * scale_row_step + b * scale_block_step,
// counted in scales; of kFloat8BlockExponent in words, where word b / 4 has block b; of kMxFloat8Swizzled
// where the tiles want them. Scales that a word or a tile has and the tensor has not become 0.
struct QuantisedRows {
  RowQuantisation kind = RowQuantisation::kNone;
  uint8_t* numbers = nullptr;
  uint64_t row_bytes = 0;  // from one row to the next
  void* scales = nullptr;  // floats, words or bytes; read for kFloat8Tensor
  uint64_t scale_row_step = 1, scale_block_step = 1;
  float least_scale = 1e-10F;  // of those computed as floats
};

// The tensors of a norm; rows are `hidden` numbers, and begin so many numbers behind each other. Null: there
// is none. residual_out may be residual_in; other tensors that are written overlap nothing.
template <typename T>
struct RmsNorm {
  uint64_t rows, hidden;
  const T* weight;  // [hidden]; null: ones
  float epsilon = 1e-6F, weight_offset = 0;
  // h is rounded to T before it is squared, as residual_out is anyway; h / sqrt(...) before the weight.
  bool rounds_sum = false, rounds_normed = false;

  const T* residual_in = nullptr;
  T* residual_out = nullptr;
  T* output = nullptr;
  uint64_t residual_in_step = 0, residual_out_step = 0, output_step = 0;
  // Columns of `output` and the quantised rows behind `hidden` that become 0.
  uint64_t padding = 0;
  QuantisedRows quantised{};
};

namespace detail {

// What a row's numbers are combined over: a word for every kCountWords-th piece of 32 vectors, which is a
// warp's at a time.
inline constexpr uint32_t kCountWords = 64;

// Words for two reductions and for what blocks of a cluster tell each other: reductions use them in turn, so
// that one barrier each is enough.
VERBENA_DEVICE float* find_row_words(uint32_t turn) {
  constexpr uint32_t kBytes = 2 * kCountWords * sizeof(float);
#if VERBENA_EMULATED
  static const char key = 0;
  auto* const words = static_cast<float*>(emulation::shared_memory(&key, kBytes, alignof(float)));
#else
  VERBENA_SHARED float words[kBytes / sizeof(float)];
#endif
  return words + turn % 2 * kCountWords;
}

// `combine` of each lane's value over `lanes` lanes, side by side: the same bits in all of them.
template <typename Combine>
VERBENA_DEVICE float combine_lanes(float value, uint32_t lanes, const Combine& combine) {
  for (uint32_t step = lanes / 2; step > 0; step /= 2)
    value = combine(value, from_bits(shuffle(kFullWarp, to_bits(value), static_cast<int>(lane() ^ step))));
  return value;
}

struct AddFloats {
  VERBENA_DEVICE float operator()(float a, float b) const { return add(a, b); }
};
struct ChooseLarger {
  VERBENA_DEVICE float operator()(float a, float b) const { return choose_larger(a, b); }
};

// Whose a row is: a block's, or that of a cluster of blocks, each of which has the words that all have put.
// Their warps divide kCountWords.
struct RowOfBlock {
  static constexpr bool kIsOfCluster = false;
  VERBENA_DEVICE static uint32_t thread() { return thread_index(); }
  VERBENA_DEVICE static uint32_t count_threads() { return threads_per_block(); }
  VERBENA_DEVICE static void meet() { sync_block(); }
  // By a warp, whose lanes have the same value.
  VERBENA_DEVICE static void put(float* word, float value) {
    if (lane() == 0) store<Order::kWeak, Scope::kThreads>(word, value);
  }
};
struct RowOfCluster {
  static constexpr bool kIsOfCluster = true;
  VERBENA_DEVICE static uint32_t thread() {
    return block_in_cluster() * threads_per_block() + thread_index();
  }
  VERBENA_DEVICE static uint32_t count_threads() { return blocks_per_cluster() * threads_per_block(); }
  VERBENA_DEVICE static void meet() { sync_cluster(); }
  VERBENA_DEVICE static void put(float* word, float value) {
    if (lane() < blocks_per_cluster())
      store<Order::kWeak, Scope::kThreads>(find_in_cluster(word, lane()), value);
  }
};

template <typename T>
VERBENA_DEVICE bool is_vector(const T* address, uint64_t step, uint64_t alignment_bytes = kVectorBytes) {
  return address == nullptr ||
         (reinterpret_cast<uint64_t>(address) | step * sizeof(T)) % alignment_bytes == 0;
}

// Rows, vector by vector: thread t of those that have a row has vectors t, t + threads and so on. The first
// kKept of them are loaded together, with their weights, and stay in its registers; of longer rows, which are
// a block's, it loads the rest again, so what is in place is written in the last pass.
template <typename T, uint32_t kKept, typename Owner = RowOfBlock>
class RowNorm {
 public:
  static constexpr uint32_t kNumbers = kVectorBytes / sizeof(T);
  using Sums = PackedSum<T>;
  using Numbers = Packed<T>;
  using Floats = float[kNumbers];

  VERBENA_DEVICE explicit RowNorm(const RmsNorm<T>& norm) : norm_(norm) {
    vectors_ = (norm.hidden + kNumbers - 1) / kNumbers;
    const QuantisedRows& quantised = norm.quantised;
    is_aligned_ = is_vector(norm.weight, 0) && is_vector(norm.residual_in, norm.residual_in_step) &&
                  is_vector(norm.residual_out, norm.residual_out_step) &&
                  is_vector(norm.output, norm.output_step) &&
                  is_vector(quantised.numbers, quantised.row_bytes, kNumbers);
  }

  // `load_sum(vector)`: the row's numbers of x, zeros behind its end. Once for each of the first kKept
  // vectors of a thread, up to three times for others.
  template <typename LoadSum>
  VERBENA_DEVICE void apply(uint64_t row, const LoadSum& load_sum) {
    // All loads are under way together: none waits for the numbers of another one.
    load_terms(row);
    Numbers x[kMostKept];
    VERBENA_UNROLL
    for (uint32_t k = 0; k < kKept; ++k) x[k] = load_sum(find_vector(k));
    (void)apply_kept(x, load_sum);
  }
  // The same in two steps, for numbers of x that come from elsewhere: kept[k] is vector find_vector(k).
  VERBENA_DEVICE void load_terms(uint64_t row) {
    row_ = row;
    VERBENA_UNROLL
    for (uint32_t k = 0; k < kKept; ++k) {
      residuals_[k] = load_residual(find_vector(k));
      weights_[k] = load_weight(find_vector(k));
    }
  }
  // `is_there`: of a row of a cluster, whether x is there in this block. False where it is not in all of
  // them: then nothing is written.
  template <uint32_t kCount, typename LoadSum>
  VERBENA_DEVICE bool apply_kept(const Numbers (&x)[kCount], const LoadSum& load_sum, bool is_there = true) {
    VERBENA_UNROLL
    for (uint32_t k = 0; k < kKept; ++k) add_terms(x[k], residuals_[k], kept_[k]);
    float* const words = find_row_words(turn_++);
    for_vectors(load_sum, [&](uint64_t vector, const Floats& h, const auto&) {
      float squares = 0;
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kNumbers; ++i) squares = multiply_add(h[i], h[i], squares);
      squares = combine_lanes(squares, kWarpLanes, AddFloats{});
      // None is negative.
      put_piece(words, vector, is_there ? squares : -1);
    });
    const uint64_t pieces = (vectors_ + kWarpLanes - 1) / kWarpLanes;
    const float squares = combine_words(words, pieces < kCountWords ? pieces : kCountWords, AddFloats{});
    if (Owner::kIsOfCluster && squares < 0) return false;
    const float mean = divide(squares, static_cast<float>(norm_.hidden));
    inverse_root_ = divide(1, find_root(add(mean, norm_.epsilon)));
    const RowQuantisation kind = norm_.quantised.kind;
    if (kind == RowQuantisation::kFloat8Tensor) {
      inverse_scale_ =
          divide(1, load<Order::kWeak, Scope::kThreads>(static_cast<const float*>(norm_.quantised.scales)));
    } else if (kind == RowQuantisation::kFloat8Token || kind == RowQuantisation::kInt8Token) {
      inverse_scale_ = divide(1, find_row_scale(load_sum, kind == RowQuantisation::kInt8Token ? 127 : 448));
    }
    for_vectors(load_sum, [&](uint64_t vector, const Floats& h, const auto& load_weight) {
      write(vector, h, load_weight());
    });
    pad();
    return true;
  }

  VERBENA_DEVICE uint64_t count_vectors() const { return vectors_; }
  VERBENA_DEVICE static uint64_t find_vector(uint32_t k) {
    return k * uint64_t{Owner::count_threads()} + Owner::thread();
  }
  VERBENA_DEVICE uint64_t count_numbers(uint64_t vector) const {
    const uint64_t begin = vector * kNumbers;
    return begin >= norm_.hidden ? 0 : norm_.hidden - begin < kNumbers ? norm_.hidden - begin : kNumbers;
  }
  // What is not there is 0.
  VERBENA_DEVICE Numbers load_numbers(const T* row, uint64_t vector, bool is_aligned) const {
    const uint64_t count = count_numbers(vector);
    if (is_aligned && count == kNumbers) return load_packed(row + vector * kNumbers);
    Several numbers{};
    for (uint32_t i = 0; i < count; ++i)
      numbers.of[i] = load<Order::kWeak, Scope::kThreads>(row + vector * kNumbers + i);
    return __builtin_bit_cast(Numbers, numbers);
  }
  VERBENA_DEVICE void store_numbers(T* row, uint64_t vector, const Numbers& packed, bool is_aligned) const {
    const uint64_t count = count_numbers(vector);
    if (is_aligned && count == kNumbers) return store_packed(row + vector * kNumbers, packed);
    const auto numbers = __builtin_bit_cast(Several, packed);
    for (uint32_t i = 0; i < count; ++i)
      store<Order::kWeak, Scope::kThreads>(row + vector * kNumbers + i, numbers.of[i]);
  }

 private:
  struct Several {
    T of[kNumbers];
  };

  // A warp's, of the 32 vectors that `vector` is of.
  VERBENA_DEVICE void put_piece(float* words, uint64_t vector, float value) const {
    if (vector - lane() >= vectors_) return;
    const uint64_t piece = vector / kWarpLanes;
    float* const word = words + piece % kCountWords;
    if (Owner::kIsOfCluster || piece < kCountWords) return Owner::put(word, value);
    // The pieces of a word are one warp's, which comes to them in their order.
    if (lane() == 0)
      store<Order::kWeak, Scope::kThreads>(word, add(load<Order::kWeak, Scope::kThreads>(word), value));
  }
  // Of the first `count` words, when all have put theirs: the same bits in all threads. A negative number is
  // passed on.
  template <typename Combine>
  VERBENA_DEVICE float combine_words(const float* words, uint64_t count, const Combine& combine) const {
    Owner::meet();
    const auto load_word = [&](uint32_t index) {
      return index < count ? load<Order::kWeak, Scope::kThreads>(words + index) : 0;
    };
    const float first = load_word(lane()), second = load_word(lane() + kWarpLanes);
    if (Owner::kIsOfCluster && ballot(kFullWarp, first < 0 || second < 0) != 0) return -1;
    return combine_lanes(combine(first, second), kWarpLanes, combine);
  }

  // `body(vector, h, load_weight)`.
  template <typename LoadSum, typename Body>
  VERBENA_DEVICE void for_vectors(const LoadSum& load_sum, const Body& body) {
    const uint32_t threads = Owner::count_threads();
    for_kept<0>(body);
    for (uint64_t first = kKept * uint64_t{threads}; !Owner::kIsOfCluster && first < vectors_;
         first += threads) {
      const uint64_t vector = first + Owner::thread();
      Floats h;
      add_terms(load_sum(vector), load_residual(vector), h);
      body(vector, h, [&] { return load_weight(vector); });
    }
  }

  // A loop that every compiler unrolls, since what it goes over lies in registers.
  template <uint32_t k, typename Body>
  VERBENA_DEVICE void for_kept(const Body& body) {
    if constexpr (k < kKept) {
      if (k * uint64_t{Owner::count_threads()} >= vectors_) return;
      body(find_vector(k), kept_[k], [&] { return weights_[k]; });
      for_kept<k + 1>(body);
    }
  }

  VERBENA_DEVICE Numbers load_residual(uint64_t vector) const {
    if (norm_.residual_in == nullptr) return {};
    return load_numbers(norm_.residual_in + row_ * norm_.residual_in_step, vector, is_aligned_);
  }
  VERBENA_DEVICE Numbers load_weight(uint64_t vector) const {
    if (norm_.weight == nullptr) return {};
    return load_numbers(norm_.weight, vector, is_aligned_);
  }
  VERBENA_DEVICE void add_terms(const Numbers& x, const Numbers& residual, Floats& h) const {
    Sums sums;
    sums.begin(x);
    if (norm_.residual_in != nullptr) sums.add(residual);
    if (norm_.rounds_sum) sums.begin(sums.round());
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kNumbers; ++i) h[i] = sums.sums[i];
  }

  // The row's output, in T; zeros behind its end.
  VERBENA_DEVICE Sums make_output(const Floats& h, const Numbers& packed_weights, Numbers& rounded) const {
    Sums sums, weights{};
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kNumbers; ++i) sums.sums[i] = multiply(h[i], inverse_root_);
    if (norm_.rounds_normed) sums.begin(sums.round());
    if (norm_.weight != nullptr) weights.begin(packed_weights);
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kNumbers; ++i) {
      const float weight = norm_.weight == nullptr ? 1 : weights.sums[i];
      sums.sums[i] = multiply(sums.sums[i], add(norm_.weight_offset, weight));
    }
    rounded = sums.round();
    sums.begin(rounded);
    return sums;
  }
  VERBENA_DEVICE static float find_magnitude(const Sums& numbers) {
    float largest = 0;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kNumbers; ++i)
      largest = choose_larger(largest, from_bits(to_bits(numbers.sums[i]) & 0x7fffffffu));
    return largest;
  }

  template <typename LoadSum>
  VERBENA_DEVICE float find_row_scale(const LoadSum& load_sum, float last) {
    float largest = 0;
    for_vectors(load_sum, [&](uint64_t, const Floats& h, const auto& load_weight) {
      Numbers rounded;
      largest = choose_larger(largest, find_magnitude(make_output(h, load_weight(), rounded)));
    });
    float* const words = find_row_words(turn_++);
    Owner::put(words + Owner::thread() / kWarpLanes, combine_lanes(largest, kWarpLanes, ChooseLarger{}));
    largest = combine_words(words, Owner::count_threads() / kWarpLanes, ChooseLarger{});
    const float scale = choose_larger(divide(largest, last), norm_.quantised.least_scale);
    if (Owner::thread() == 0)
      store<Order::kWeak, Scope::kThreads>(
          static_cast<float*>(norm_.quantised.scales) + row_ * norm_.quantised.scale_row_step, scale);
    return scale;
  }

  // By all lanes of a warp together, some of which are behind the row's end.
  VERBENA_DEVICE void write(uint64_t vector, const Floats& h, const Numbers& weights) const {
    Numbers rounded;
    const Sums numbers = make_output(h, weights, rounded);
    if (norm_.residual_out != nullptr) {
      Sums sums;
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kNumbers; ++i) sums.sums[i] = h[i];
      store_numbers(norm_.residual_out + row_ * norm_.residual_out_step, vector, sums.round(), is_aligned_);
    }
    if (norm_.output != nullptr)
      store_numbers(norm_.output + row_ * norm_.output_step, vector, rounded, is_aligned_);
    if (norm_.quantised.kind == RowQuantisation::kNone) return;
    store_quantised(vector, numbers, find_inverse(vector, numbers));
  }

  // By what numbers are multiplied before they are rounded; writes the scales of blocks.
  VERBENA_DEVICE float find_inverse(uint64_t vector, const Sums& numbers) const {
    const RowQuantisation kind = norm_.quantised.kind;
    const bool is_mx = kind == RowQuantisation::kMxFloat8 || kind == RowQuantisation::kMxFloat8Swizzled;
    if (kind < RowQuantisation::kFloat8Block || kind == RowQuantisation::kInt8Token) return inverse_scale_;
    const uint32_t numbers_in_block = is_mx ? 32 : 128, lanes = numbers_in_block / kNumbers;
    const float largest = combine_lanes(find_magnitude(numbers), lanes, ChooseLarger{});
    const bool is_leader = lane() % lanes == 0 && vector < vectors_;
    const uint64_t block = vector / lanes;
    if (is_mx) {
      const uint32_t exponent = choose_exponent(largest);
      if (is_leader) store_mx_scale(block, exponent);
      return invert_exponent(exponent);
    }
    const float block_scale = choose_larger(divide(largest, 448), norm_.quantised.least_scale);
    if (kind == RowQuantisation::kFloat8Block) {
      if (is_leader) store_block_scale(block, block_scale);
      return divide(1, block_scale);
    }
    const uint32_t exponent = round_up_to_power(block_scale);
    if (!is_leader) return invert_exponent(exponent);
    if (kind == RowQuantisation::kFloat8BlockPower) {
      store_block_scale(block, from_bits(exponent == 255 ? 0x7fffffffu : exponent << 23));
    } else {
      store_exponent(block, exponent);
    }
    return invert_exponent(exponent);
  }
  VERBENA_DEVICE void store_block_scale(uint64_t block, float scale) const {
    const QuantisedRows& rows = norm_.quantised;
    store<Order::kWeak, Scope::kThreads>(
        static_cast<float*>(rows.scales) + row_ * rows.scale_row_step + block * rows.scale_block_step, scale);
  }
  VERBENA_DEVICE void store_exponent(uint64_t block, uint32_t exponent) const {
    const QuantisedRows& rows = norm_.quantised;
    auto* const bytes = static_cast<uint8_t*>(rows.scales) +
                        (row_ * rows.scale_row_step + block / 4 * rows.scale_block_step) * 4;
    store<Order::kWeak, Scope::kThreads>(bytes + block % 4, static_cast<uint8_t>(exponent));
    const bool is_last = (block + 1) * 128 >= norm_.hidden;
    for (uint64_t i = block % 4 + 1; is_last && i < 4; ++i)
      store<Order::kWeak, Scope::kThreads>(bytes + i, uint8_t{0});
  }
  VERBENA_DEVICE void store_mx_scale(uint64_t block, uint32_t exponent) const {
    const QuantisedRows& rows = norm_.quantised;
    const uint64_t place = rows.kind == RowQuantisation::kMxFloat8
                               ? row_ * rows.scale_row_step + block * rows.scale_block_step
                               : find_swizzled(row_, block);
    store<Order::kWeak, Scope::kThreads>(static_cast<uint8_t*>(rows.scales) + place,
                                         static_cast<uint8_t>(exponent));
  }
  // Of a row's scale in tiles of 512 bytes, of 128 rows and 4 scales.
  VERBENA_DEVICE uint64_t find_swizzled(uint64_t row, uint64_t block) const {
    return (row / 128 * count_tiles() + block / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
  }
  VERBENA_DEVICE uint64_t count_tiles() const { return (norm_.hidden + 127) / 128; }  // of a row

  VERBENA_DEVICE void store_quantised(uint64_t vector, const Sums& numbers, float inverse) const {
    const uint64_t count = count_numbers(vector);
    if (count == 0) return;
    uint32_t words[kNumbers / 4];
    VERBENA_UNROLL
    for (uint32_t word = 0; word < kNumbers / 4; ++word) {
      float scaled[4];
      VERBENA_UNROLL
      for (uint32_t i = 0; i < 4; ++i) scaled[i] = multiply(numbers.sums[4 * word + i], inverse);
      words[word] = norm_.quantised.kind == RowQuantisation::kInt8Token ? round_to_int8(scaled)
                                                                        : Number<E4m3>::narrow(scaled);
    }
    uint8_t* const to = norm_.quantised.numbers + row_ * norm_.quantised.row_bytes + vector * kNumbers;
    if (is_aligned_ && count == kNumbers) {
      struct Bytes {
        uint32_t of[kNumbers / 4];
      } bytes;
      VERBENA_UNROLL
      for (uint32_t word = 0; word < kNumbers / 4; ++word) bytes.of[word] = words[word];
      store<Order::kWeak, Scope::kThreads>(reinterpret_cast<Bytes*>(to), bytes);
      return;
    }
    for (uint32_t i = 0; i < count; ++i)
      store<Order::kWeak, Scope::kThreads>(to + i, static_cast<uint8_t>(words[i / 4] >> i % 4 * 8));
  }
  // Numbers up to 127; the sum's last bit is worth 1.
  VERBENA_DEVICE static uint32_t round_to_int8(const float (&numbers)[4]) {
    uint32_t word = 0;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < 4; ++i) word |= (to_bits(add(numbers[i], 0x1.8p23F)) & 0xff) << 8 * i;
    return word;
  }

  VERBENA_DEVICE void pad() const {
    for (uint64_t i = Owner::thread(); i < norm_.padding; i += Owner::count_threads()) {
      if (norm_.output != nullptr)
        store<Order::kWeak, Scope::kThreads>(norm_.output + row_ * norm_.output_step + norm_.hidden + i, T{});
      if (norm_.quantised.kind != RowQuantisation::kNone)
        store<Order::kWeak, Scope::kThreads>(
            norm_.quantised.numbers + row_ * norm_.quantised.row_bytes + norm_.hidden + i, uint8_t{0});
    }
    if (norm_.quantised.kind != RowQuantisation::kMxFloat8Swizzled) return;
    // Of tiles, what no row has: its scales to the next multiple of 4, and behind the last row all.
    const uint64_t scales = (norm_.hidden + 31) / 32, all = count_tiles() * 4;
    const uint64_t end = row_ + 1 == norm_.rows ? (norm_.rows + 127) / 128 * 128 : row_ + 1;
    for (uint64_t row = row_; row < end; ++row) {
      for (uint64_t i = (row == row_ ? scales : 0) + Owner::thread(); i < all; i += Owner::count_threads())
        store<Order::kWeak, Scope::kThreads>(
            static_cast<uint8_t*>(norm_.quantised.scales) + find_swizzled(row, i), uint8_t{0});
    }
  }

  const RmsNorm<T>& norm_;
  uint64_t vectors_, row_ = 0;
  bool is_aligned_;
  uint32_t turn_ = 0;
  float inverse_root_ = 0, inverse_scale_ = 0;
  static constexpr uint32_t kMostKept = kKept == 0 ? 1 : kKept;
  Floats kept_[kMostKept];
  Numbers residuals_[kMostKept], weights_[kMostKept];
};

}  // namespace detail

// Rows first, first + step and so on of a tensor x that lies in memory, `x_step` numbers from one to the
// next, by all threads of a block of 1, 2, 4, 8, 16 or 32 warps; what they wrote before is there. x may be
// residual_out or output, at the same step.
template <uint32_t kKept = 2, typename T>
VERBENA_DEVICE void norm_rows(const RmsNorm<T>& norm, const T* x, uint64_t x_step, uint64_t first,
                              uint64_t end, uint64_t step = 1) {
  detail::RowNorm<T, kKept> rows(norm);
  const bool is_aligned = detail::is_vector(x, x_step);
  // Also behind the reads of a norm before this one.
  sync_block();
  for (uint64_t row = first; row < end; row += step)
    rows.apply(row, [&](uint64_t vector) { return rows.load_numbers(x + row * x_step, vector, is_aligned); });
}

// The same, for functions that are told how to norm.
struct NormRows {
  template <typename T>
  VERBENA_DEVICE void operator()(const RmsNorm<T>& norm, const T* x, uint64_t first, uint64_t end) const {
    norm_rows(norm, x, norm.hidden, first, end);
  }
};

}  // namespace verbena::device

#endif
