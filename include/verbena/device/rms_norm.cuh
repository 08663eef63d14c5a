// RMSNorm of the rows of a tensor, by blocks or clusters. A residual can be added before the norm, and the
// output can be quantised, as in inference engines between an all-reduce and the next matrix product:
//
//   h = x + residual              x: the row
//   residual_out = h
//   output = h / sqrt(mean(h^2) + epsilon) * (weight_offset + weight)
//   quantised = output as e4m3 or int8, with scales
//
// norm_rows() normalises rows in memory; all_reduce_norm.cuh normalises rows in registers. Arithmetic is in
// float, and the order of operations depends only on the length of the row. So the results have the same bits
// in every kernel, with any number of threads.
#ifndef VERBENA_DEVICE_RMS_NORM_CUH
#define VERBENA_DEVICE_RMS_NORM_CUH

#include "verbena/device/arithmetic.cuh"
#include "verbena/device/copy.cuh"
#include "verbena/device/group.cuh"

namespace verbena::device {

// Formats of quantised rows. Each element is stored as one byte, an e4m3 or int8 number; the value of the
// element is this number times the scale.
enum class RowQuantisation : uint32_t {
  kNone = 0,
  kFloat8Tensor = 1,  // e4m3; one float scale for the tensor, which the caller passes
  kFloat8Token = 2,   // e4m3; one float scale per row: the row's largest magnitude / 448
  kFloat8Block = 3,   // e4m3; one float scale per 128 elements of a row
  // kFloat8Block with scales that are rounded up to powers of two. kFloat8BlockPower stores the scales as
  // floats; kFloat8BlockExponent stores them as exponents (UE8M0), four per word.
  kFloat8BlockPower = 4,
  kFloat8BlockExponent = 5,
  kMxFloat8 = 6,          // e4m3; one E8M0 scale (one byte) per 32 elements
  kMxFloat8Swizzled = 7,  // kMxFloat8 with scales in tiles of 128 rows by 4 scales, the layout that tensor
                          // cores read
  kInt8Token = 8,         // int8; one float scale per row: the row's largest magnitude / 127
};

// The memory of the quantised rows. A block is a group of elements that share a scale. The scale of block b
// of row r is element r * scale_row_stride + b * scale_block_stride of `scales`. In kFloat8BlockExponent, a
// word contains the scales of four blocks, so b / 4 replaces b in this formula. In kMxFloat8Swizzled, the
// scales are in the order of the tiles, and the strides have no effect. Unused scales in the last word or
// tile are set to 0.
struct QuantisedRows {
  RowQuantisation kind = RowQuantisation::kNone;
  uint8_t* elements = nullptr;
  uint64_t row_bytes = 0;  // distance between the starts of rows
  void* scales = nullptr;  // floats, words or bytes; an input for kFloat8Tensor, otherwise an output
  uint64_t scale_row_stride = 1, scale_block_stride = 1;
  float min_scale = 1e-10F;  // lower bound of the float scales that are computed
};

// The tensors of a norm. Rows have `hidden` elements; strides are distances between the starts of rows, in
// elements. A tensor whose pointer is null is neither read nor written. residual_out may equal residual_in;
// otherwise, no output may overlap another tensor.
template <typename T>
struct RmsNorm {
  uint64_t rows, hidden;
  const T* weight;  // [hidden]; if null, all weights are 1
  float epsilon = 1e-6F, weight_offset = 0;
  // If rounds_sum is true, h is rounded to T before it is squared. If rounds_normed is true, h / sqrt(...) is
  // rounded to T before it is multiplied by the weight.
  bool rounds_sum = false, rounds_normed = false;

  const T* residual_in = nullptr;
  T* residual_out = nullptr;
  T* output = nullptr;
  uint64_t residual_in_stride = 0, residual_out_stride = 0, output_stride = 0;
  // Number of columns, after the first `hidden` columns, that are set to 0 in `output` and in the quantised
  // rows.
  uint64_t padding = 0;
  QuantisedRows quantised{};
};

namespace detail {

// The number of words through which the threads of a row combine their partial results. A warp processes the
// row in pieces of 32 vectors, one vector per lane. Word w combines the results of pieces w, w + kCountWords,
// and so on.
inline constexpr uint32_t kCountWords = 64;

// A word with the partial result of a warp, which all warps of the row read. A turn is one reduction over a
// row. If a cluster shares the row, the word also contains the number of the turn. Then one store publishes
// the result, and no barrier is needed. A barrier of the cluster would be slow, because it waits for all
// stores of the cluster's threads, including stores to peers.
struct alignas(8) RowWord {
  uint32_t bits, turn;
};

// Returns two sets of words; consecutive reductions over a row (turns) alternate between the sets. Two sets
// are enough, because a thread that has received all words of one turn knows that all threads have read the
// words of the previous turn.
VERBENA_DEVICE RowWord* find_row_words() {
  constexpr uint32_t kCount = 2 * kCountWords;
#if VERBENA_EMULATED
  static const char key = 0;
  return static_cast<RowWord*>(emulation::shared_memory(&key, kCount * sizeof(RowWord), alignof(RowWord)));
#else
  VERBENA_SHARED RowWord words[kCount];
  return words;
#endif
}
VERBENA_DEVICE uint32_t find_first_word(uint32_t turn) {
  return turn % 2 * kCountWords;
}

// Returns the combination of the values of `lanes` adjacent lanes. All these lanes get the same bits.
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

// The owner of a row is a block (RowOfBlock), a cluster of blocks (RowOfCluster), or several warps of a block
// (RowOfWarps). A warp publishes its partial results with put(), and all threads read these results with
// take(). In a cluster, each block has a copy of the words. A row of a cluster has at most kCountWords
// pieces. A block may have more pieces if its number of warps divides kCountWords. `word` is below 2 *
// kCountWords.
class RowOfBlock {
 public:
  static constexpr bool kIsOfCluster = false;
  VERBENA_DEVICE static uint32_t thread() { return thread_index(); }
  VERBENA_DEVICE static uint32_t count_threads() { return threads_per_block(); }
  VERBENA_DEVICE void meet() const { sync_block(); }
  // Stores the partial result of a warp. All lanes must pass the same value.
  VERBENA_DEVICE void put(uint32_t word, float value, uint32_t) const {
    if (lane() == 0) store<Order::kWeak, Scope::kThreads>(&words_[word].bits, to_bits(value));
  }
  // Loads a value. Call take() after meet(). Returns true.
  VERBENA_DEVICE bool take(uint32_t word, uint32_t, float& value) const {
    value = from_bits(load<Order::kWeak, Scope::kThreads>(&words_[word].bits));
    return true;
  }

 private:
  RowWord* words_ = find_row_words();
};
// In each turn (a reduction over a row), every warp publishes a word for each of its pieces of the row,
// including pieces after the end of the row. So no warp gets more than one turn ahead of another.
class RowOfCluster {
 public:
  static constexpr bool kIsOfCluster = true, kIsOfWarps = false;
  VERBENA_DEVICE static uint32_t row() { return 0; }
  VERBENA_DEVICE static uint32_t count_rows() { return 1; }
  VERBENA_DEVICE static uint32_t thread() {
    return block_in_cluster() * threads_per_block() + thread_index();
  }
  VERBENA_DEVICE static uint32_t count_threads() { return blocks_per_cluster() * threads_per_block(); }
  // Resets the words of this block. Before the first put(), all threads call begin() and then await_others().
  // When await_others() returns, the other blocks have reset their words, too.
  VERBENA_DEVICE void begin() const {
    for (uint32_t i = thread_index(); i < 2 * kCountWords; i += threads_per_block())
      store<Order::kRelaxed, Scope::kCluster>(words_ + i, RowWord{0, 0});
    arrive_at_cluster();
  }
  VERBENA_DEVICE void await_others() {
    await_cluster();
    if (lane() < blocks_per_cluster()) others_words_ = keep(find_in_cluster(words_, lane()));
  }
  VERBENA_DEVICE void meet() const {}
  VERBENA_DEVICE void put(uint32_t word, float value, uint32_t turn) const {
    if (others_words_ != nullptr)
      store<Order::kRelaxed, Scope::kCluster>(others_words_ + word, RowWord{to_bits(value), turn});
  }
  // Returns false if the value has not arrived yet.
  VERBENA_DEVICE bool take(uint32_t word, uint32_t turn, float& value) const {
    const auto taken = load<Order::kRelaxed, Scope::kCluster>(words_ + word);
    value = from_bits(taken.bits);
    return taken.turn == turn;
  }

 protected:
  // others_words_ points to the words of the block whose index is the lane's number; null if there is no such
  // block.
  RowWord *words_ = keep(find_row_words()), *others_words_ = nullptr;
};
// A block that is a cluster of its own handles several rows at a time. Each row has an equal share of the
// block's warps and words, so that the warps of a row wait only for each other.
class RowOfWarps : public RowOfCluster {
 public:
  static constexpr bool kIsOfWarps = true;
  // @param rows  number of rows; divides the number of warps. A row has at most kCountWords / rows pieces
  VERBENA_DEVICE explicit RowOfWarps(uint32_t rows)
      : rows_(rows), threads_(threads_per_block() / rows), row_(thread_index() / threads_) {}
  VERBENA_DEVICE uint32_t thread() const { return thread_index() - row_ * threads_; }
  VERBENA_DEVICE uint32_t count_threads() const { return threads_; }
  // Returns the index of this thread's row in the block, and the number of rows.
  VERBENA_DEVICE uint32_t row() const { return row_; }
  VERBENA_DEVICE uint32_t count_rows() const { return rows_; }
  VERBENA_DEVICE void await_others() {
    RowOfCluster::await_others();
    const uint32_t first = row_ * (kCountWords / rows_);
    words_ = keep(words_ + first);
    if (others_words_ != nullptr) others_words_ = keep(others_words_ + first);
  }

 private:
  uint32_t rows_, threads_, row_;
};

// Waits until all warps have published their words of a turn (a reduction over the row), and returns the
// combination of the first `count` words. All threads get the same bits. For a cluster, returns -1 if a word
// is negative.
template <typename Owner, typename Combine>
VERBENA_DEVICE float combine_words(const Owner& owner, uint32_t turn, uint32_t count,
                                   const Combine& combine) {
  owner.meet();
  const uint32_t word = find_first_word(turn) + lane();
  const bool has_first = lane() < count, has_second = lane() + kWarpLanes < count;
  float first = 0, second = 0;
  bool have_come = false;
  // The wait needs no timeout, because the blocks of a cluster run at the same time. The lanes leave the loop
  // together, because otherwise the shuffles after the loop would be several times slower.
  do {
    have_come = (!has_first || owner.take(word, turn, first)) &&
                (!has_second || owner.take(word + kWarpLanes, turn, second));
  } while (Owner::kIsOfCluster && ballot(kFullWarp, have_come) != kFullWarp);
  if (Owner::kIsOfCluster && ballot(kFullWarp, first < 0 || second < 0) != 0) return -1;
  return combine_lanes(combine(first, second), kWarpLanes, combine);
}

// The vectors of a row that a thread handles.
struct RowVectors {
  uint32_t first, step;    // the thread's first vector, and the number of threads that share the row
  uint64_t hidden, whole;  // number of elements in the row, and number of full vectors

  VERBENA_DEVICE uint64_t find(uint32_t k) const { return k * uint64_t{step} + first; }
  template <uint32_t kElements>
  VERBENA_DEVICE uint32_t count_elements(uint64_t vector) const {
    if (vector < whole) return kElements;
    return vector == whole ? static_cast<uint32_t>(hidden % kElements) : 0;
  }
};

// Quantises the output of a row, and stores the quantised elements and their scales.
template <typename T, typename Owner>
class RowQuantiser {
 public:
  static constexpr uint32_t kElements = kVectorBytes / sizeof(T);
  using Elements = Packed<T>;

  VERBENA_DEVICE RowQuantiser(const QuantisedRows& to, uint64_t rows, uint64_t row, const RowVectors& vectors,
                              bool is_aligned, const Owner& owner, uint32_t turn)
      : to_(to),
        rows_(rows),
        row_(row),
        vectors_(vectors),
        is_aligned_(is_aligned),
        owner_(owner),
        turn_(turn) {}

  VERBENA_DEVICE bool has_row_scale() const {
    return to_.kind == RowQuantisation::kFloat8Token || to_.kind == RowQuantisation::kInt8Token;
  }
  // Begins a row. All threads that share the row must call it.
  // @param largest  the largest magnitude of the thread's elements; used for formats with a scale per row
  VERBENA_DEVICE void begin(float largest) {
    if (to_.kind == RowQuantisation::kFloat8Tensor) {
      inverse_scale_ = divide(1, load<Order::kWeak, Scope::kThreads>(static_cast<const float*>(to_.scales)));
    } else if (has_row_scale()) {
      inverse_scale_ = divide(1, share_row_scale(largest));
    }
  }
  VERBENA_DEVICE static float find_magnitude(const Elements& numbers) {
    PackedSum<T> sums;
    sums.begin(numbers);
    float largest = 0;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kElements; ++i)
      largest = choose_larger(largest, from_bits(to_bits(sums.sums[i]) & 0x7fffffffu));
    return largest;
  }
  // Quantises and stores a vector. All lanes of a warp call this function together, including the lanes whose
  // vectors are after the end of the row.
  VERBENA_DEVICE void store_vector(uint64_t vector, const Elements& numbers) const {
    const float inverse = find_inverse(vector, numbers);
    const uint32_t count = vectors_.template count_elements<kElements>(vector);
    if (count == 0) return;
    PackedSum<T> sums;
    sums.begin(numbers);
    uint32_t words[kElements / 4];
    VERBENA_UNROLL
    for (uint32_t word = 0; word < kElements / 4; ++word) {
      float scaled[4];
      VERBENA_UNROLL
      for (uint32_t i = 0; i < 4; ++i) scaled[i] = multiply(sums.sums[4 * word + i], inverse);
      words[word] =
          to_.kind == RowQuantisation::kInt8Token ? round_to_int8(scaled) : Element<E4m3>::narrow(scaled);
    }
    uint8_t* const to = to_.elements + row_ * to_.row_bytes + vector * kElements;
    if (is_aligned_ && count == kElements) {
      struct Bytes {
        uint32_t of[kElements / 4];
      } bytes;
      VERBENA_UNROLL
      for (uint32_t word = 0; word < kElements / 4; ++word) bytes.of[word] = words[word];
      store<Order::kWeak, Scope::kThreads>(reinterpret_cast<Bytes*>(to), bytes);
      return;
    }
    for (uint32_t i = 0; i < count; ++i)
      store<Order::kWeak, Scope::kThreads>(to + i, static_cast<uint8_t>(words[i / 4] >> i % 4 * 8));
  }
  // Sets `padding` elements after the row to 0. If the scales are in tiles, also sets the row's unused scales
  // to 0. For the last row, also sets the scales of the missing rows of the last tile to 0.
  VERBENA_DEVICE void pad(uint64_t padding) const {
    for (uint64_t i = vectors_.first; i < padding; i += vectors_.step)
      store<Order::kWeak, Scope::kThreads>(to_.elements + row_ * to_.row_bytes + vectors_.hidden + i,
                                           uint8_t{0});
    if (to_.kind != RowQuantisation::kMxFloat8Swizzled) return;
    const uint64_t scales = (vectors_.hidden + 31) / 32, all = count_tiles() * 4;
    const uint64_t end = row_ + 1 == rows_ ? (rows_ + 127) / 128 * 128 : row_ + 1;
    for (uint64_t row = row_; row < end; ++row) {
      for (uint64_t i = (row == row_ ? scales : 0) + vectors_.first; i < all; i += vectors_.step)
        store<Order::kWeak, Scope::kThreads>(static_cast<uint8_t*>(to_.scales) + find_swizzled(row, i),
                                             uint8_t{0});
    }
  }

 private:
  VERBENA_DEVICE float share_row_scale(float largest) const {
    owner_.put(find_first_word(turn_) + vectors_.first / kWarpLanes,
               combine_lanes(largest, kWarpLanes, ChooseLarger{}), turn_);
    largest = combine_words(owner_, turn_, vectors_.step / kWarpLanes, ChooseLarger{});
    const float last = to_.kind == RowQuantisation::kInt8Token ? 127 : 448;
    const float scale = choose_larger(divide(largest, last), to_.min_scale);
    if (vectors_.first == 0)
      store<Order::kWeak, Scope::kThreads>(static_cast<float*>(to_.scales) + row_ * to_.scale_row_stride,
                                           scale);
    return scale;
  }
  // Returns the factor by which elements are multiplied before rounding. If the format has a scale per block,
  // also stores the scale of the block that contains the vector.
  VERBENA_DEVICE float find_inverse(uint64_t vector, const Elements& numbers) const {
    const RowQuantisation kind = to_.kind;
    const bool is_mx = kind == RowQuantisation::kMxFloat8 || kind == RowQuantisation::kMxFloat8Swizzled;
    if (kind < RowQuantisation::kFloat8Block || kind == RowQuantisation::kInt8Token) return inverse_scale_;
    const uint32_t elements_in_block = is_mx ? 32 : 128, lanes = elements_in_block / kElements;
    const float largest = combine_lanes(find_magnitude(numbers), lanes, ChooseLarger{});
    const bool is_leader = lane() % lanes == 0 && vector * kElements < vectors_.hidden;
    const uint64_t block = vector / lanes;
    if (is_mx) {
      const uint32_t exponent = choose_exponent(largest);
      if (is_leader) store_mx_scale(block, exponent);
      return invert_exponent(exponent);
    }
    const float block_scale = choose_larger(divide(largest, 448), to_.min_scale);
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
    store<Order::kWeak, Scope::kThreads>(
        static_cast<float*>(to_.scales) + row_ * to_.scale_row_stride + block * to_.scale_block_stride,
        scale);
  }
  VERBENA_DEVICE void store_exponent(uint64_t block, uint32_t exponent) const {
    auto* const bytes = static_cast<uint8_t*>(to_.scales) +
                        (row_ * to_.scale_row_stride + block / 4 * to_.scale_block_stride) * 4;
    store<Order::kWeak, Scope::kThreads>(bytes + block % 4, static_cast<uint8_t>(exponent));
    const bool is_last = (block + 1) * 128 >= vectors_.hidden;
    for (uint64_t i = block % 4 + 1; is_last && i < 4; ++i)
      store<Order::kWeak, Scope::kThreads>(bytes + i, uint8_t{0});
  }
  VERBENA_DEVICE void store_mx_scale(uint64_t block, uint32_t exponent) const {
    const uint64_t place = to_.kind == RowQuantisation::kMxFloat8
                               ? row_ * to_.scale_row_stride + block * to_.scale_block_stride
                               : find_swizzled(row_, block);
    store<Order::kWeak, Scope::kThreads>(static_cast<uint8_t*>(to_.scales) + place,
                                         static_cast<uint8_t>(exponent));
  }
  // Returns the offset of a scale in the tiles. A tile has 512 bytes, for 128 rows by 4 scales.
  VERBENA_DEVICE uint64_t find_swizzled(uint64_t row, uint64_t block) const {
    return (row / 128 * count_tiles() + block / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + block % 4;
  }
  VERBENA_DEVICE uint64_t count_tiles() const { return (vectors_.hidden + 127) / 128; }  // per row

  // Rounds values of magnitude up to 127 to integers by adding 1.5 * 2^23, which leaves the integers in the
  // low bits of the sums.
  VERBENA_DEVICE static uint32_t round_to_int8(const float (&numbers)[4]) {
    uint32_t word = 0;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < 4; ++i) word |= (to_bits(add(numbers[i], 0x1.8p23F)) & 0xff) << 8 * i;
    return word;
  }

  QuantisedRows to_;
  uint64_t rows_, row_;
  RowVectors vectors_;
  bool is_aligned_;
  Owner owner_;
  uint32_t turn_;
  float inverse_scale_ = 0;
};

template <typename T>
VERBENA_DEVICE bool is_vector(const T* address, uint64_t step, uint64_t alignment_bytes = kVectorBytes) {
  return address == nullptr ||
         (reinterpret_cast<uint64_t>(address) | step * sizeof(T)) % alignment_bytes == 0;
}

// Normalises rows, vector by vector. If n threads share a row, thread t processes vectors t, t + n, and so
// on. A thread loads its first kKept vectors and their weights together, and keeps them in registers. If a
// row has more vectors, the row must belong to a single block, and each pass loads the remaining vectors
// again. Outputs are written in the last pass, so an output may be the same tensor as x.
template <typename T, uint32_t kKept, typename Owner = RowOfBlock>
class RowNorm {
 public:
  static constexpr uint32_t kElements = kVectorBytes / sizeof(T);
  using Sums = PackedSum<T>;
  using Elements = Packed<T>;
  using Floats = float[kElements];

  VERBENA_DEVICE explicit RowNorm(const RmsNorm<T>& norm, const Owner& owner = Owner())
      : norm_(norm), owner_(owner) {
    vectors_ = {keep(owner.thread()), keep(owner.count_threads()), norm.hidden,
                keep(norm.hidden / kElements)};
    count_vectors_ = keep((norm.hidden + kElements - 1) / kElements);
    inverse_hidden_ = keep(divide(1, static_cast<float>(norm.hidden)));
    const QuantisedRows& quantised = norm.quantised;
    const bool is_aligned = is_vector(norm.weight, 0) &&
                            is_vector(norm.residual_in, norm.residual_in_stride) &&
                            is_vector(norm.residual_out, norm.residual_out_stride) &&
                            is_vector(norm.output, norm.output_stride) &&
                            is_vector(quantised.elements, quantised.row_bytes, kElements);
    has_ = keep((is_aligned ? kAlignment : 0) | (norm.residual_in != nullptr ? kResidual : 0) |
                (norm.residual_out != nullptr ? kResidualOut : 0) | (norm.weight != nullptr ? kWeight : 0) |
                (norm.output != nullptr ? kOutput : 0) | (norm.rounds_sum ? kRoundedSum : 0) |
                (norm.rounds_normed ? kRoundedNormed : 0) |
                (quantised.kind != RowQuantisation::kNone ? kQuantised : 0) |
                (norm.padding != 0 && norm.output != nullptr ? kPaddedOutput : 0));
    epsilon_ = keep(norm.epsilon);
    count_words_ = keep(count_words());
  }

  // Normalises a row.
  // @param load_sum  load_sum(vector) returns a vector of x, with zeros after the end of the row. RowNorm
  //                  calls load_sum once for each of the thread's first kKept vectors, and up to three times
  //                  for each further vector
  template <typename LoadSum>
  VERBENA_DEVICE void apply(uint64_t row, const LoadSum& load_sum) {
    // All loads are in flight at the same time.
    load_addends(row);
    Elements x[kMaxKept];
    VERBENA_UNROLL
    for (uint32_t k = 0; k < kKept; ++k) x[k] = load_sum(find_vector(k));
    add_kept(x, load_sum);
    (void)finish(load_sum);
  }
  VERBENA_DEVICE Owner& owner() { return owner_; }
  // load_addends(), add_kept() and finish() together do the same as apply(), for an x that is in registers.
  VERBENA_DEVICE void load_addends(uint64_t row) {
    row_ = row;
    residual_out_ = keep(norm_.residual_out + row * norm_.residual_out_stride);
    output_ = keep(norm_.output + row * norm_.output_stride);
    VERBENA_UNROLL
    for (uint32_t k = 0; k < kKept; ++k) {
      residuals_[k] = load_residual(find_vector(k));
      weights_[k] = load_weight(find_vector(k));
    }
  }
  // @param x  x[k] is vector find_vector(k)
  // @param is_there  false if x has not arrived in this block of the cluster
  template <uint32_t kCount, typename LoadSum>
  VERBENA_DEVICE void add_kept(const Elements (&x)[kCount], const LoadSum& load_sum, bool is_there = true) {
    VERBENA_UNROLL
    for (uint32_t k = 0; k < kKept; ++k) add_values(x[k], residuals_[k], kept_[k]);
    ++turn_;
    for_vectors(load_sum, [&](uint64_t vector, const Floats& h, const auto&, uint32_t) {
      float squares = 0;
      VERBENA_UNROLL
      for (uint32_t i = 0; i < kElements; ++i) squares = multiply_add(h[i], h[i], squares);
      squares = combine_lanes(squares, kWarpLanes, AddFloats{});
      // -1 reports missing data; a sum of squares is never negative.
      put_piece(vector, is_there ? squares : -1);
    });
    // The following stores overlap with the exchange of the words.
    VERBENA_UNROLL
    for (uint32_t k = 0; k < kKept; ++k) {
      if (is_there) store_residual(find_vector(k), kept_[k]);
      factors_[k] = find_factors(weights_[k]);
    }
  }
  // Completes a row. Returns false, and writes nothing more, if x has not arrived in all blocks of the
  // cluster.
  template <typename LoadSum>
  VERBENA_DEVICE bool finish(const LoadSum& load_sum) {
    const float squares = combine_words(owner_, turn_, count_words_, AddFloats{});
    if (Owner::kIsOfCluster && squares < 0) return false;
    inverse_root_ = find_inverse_root(multiply_add(squares, inverse_hidden_, epsilon_));
    Several rounded{};  // zeros after the end of the row
    for_kept<0>([&](uint64_t vector, const Floats& h, const auto& find_factors, uint32_t k) {
      rounded.of[k] = make_output(h, find_factors());
      if (has(kOutput)) store_elements(output_, vector, rounded.of[k], has(kAlignment));
    });
    const bool is_quantised = has(kQuantised);
    Quantiser quantiser = make_quantiser();
    if (is_quantised) quantiser.begin(find_largest(quantiser, rounded, load_sum));
    for_kept<0>([&](uint64_t vector, const Floats&, const auto&, uint32_t k) {
      if (is_quantised) quantiser.store_vector(vector, rounded.of[k]);
    });
    for_others(load_sum, [&](uint64_t vector, const Floats& h, const auto& find_factors, uint32_t) {
      store_residual(vector, h);
      const Elements numbers = make_output(h, find_factors());
      if (has(kOutput)) store_elements(output_, vector, numbers, has(kAlignment));
      if (is_quantised) quantiser.store_vector(vector, numbers);
    });
    if (is_quantised) quantiser.pad(norm_.padding);
    if (__builtin_expect(has(kPaddedOutput), 0))
      pad(output_ + norm_.hidden, norm_.padding, vectors_.first, vectors_.step);
    return true;
  }

  VERBENA_DEVICE uint64_t count_vectors() const { return count_vectors_; }
  VERBENA_DEVICE uint64_t find_vector(uint32_t k) const { return vectors_.find(k); }
  // Loads a vector, with zeros after the end of the row.
  VERBENA_DEVICE Elements load_elements(const T* row, uint64_t vector, bool is_aligned) const {
    if (__builtin_expect(is_aligned && vector < vectors_.whole, 1))
      return load_packed(row + vector * kElements);
    return load_apart(row + vector * kElements, vectors_.template count_elements<kElements>(vector));
  }
  VERBENA_DEVICE void store_elements(T* row, uint64_t vector, const Elements& packed, bool is_aligned) const {
    if (__builtin_expect(is_aligned && vector < vectors_.whole, 1))
      return store_packed(row + vector * kElements, packed);
    store_apart(row + vector * kElements, vectors_.template count_elements<kElements>(vector), packed);
  }

 private:
  using Quantiser = RowQuantiser<T, Owner>;
  // Bits that say which tensors and options the norm has. The constructor computes these bits before the wait
  // for earlier kernels, so that the computation takes no extra time.
  static constexpr uint32_t kAlignment = 1, kResidual = 2, kResidualOut = 4, kWeight = 8, kOutput = 16,
                            kRoundedSum = 32, kRoundedNormed = 64, kQuantised = 128, kPaddedOutput = 256;
  VERBENA_DEVICE bool has(uint32_t what) const { return (has_ & what) != 0; }
  struct Some {
    T of[kElements];
  };
  static constexpr uint32_t kMaxKept = kKept == 0 ? 1 : kKept;
  struct Several {
    Elements of[kMaxKept];
  };
  // load_apart() and store_apart() are not inlined, which keeps the code of the common path contiguous.
  VERBENA_DEVICE_FAR static Elements load_apart(const T* from, uint32_t count) {
    Some numbers{};
    for (uint32_t i = 0; i < count; ++i) numbers.of[i] = load<Order::kWeak, Scope::kThreads>(from + i);
    return __builtin_bit_cast(Elements, numbers);
  }
  VERBENA_DEVICE_FAR static void store_apart(T* to, uint32_t count, const Elements packed) {
    const auto numbers = __builtin_bit_cast(Some, packed);
    for (uint32_t i = 0; i < count; ++i) store<Order::kWeak, Scope::kThreads>(to + i, numbers.of[i]);
  }

  VERBENA_DEVICE_FAR static void pad(T* from, uint64_t count, uint64_t first, uint64_t step) {
    for (uint64_t i = first; i < count; i += step) store<Order::kWeak, Scope::kThreads>(from + i, T{});
  }
  // If each row has one scale, one more reduction is needed, which takes a turn. turn_
  // increases only for reductions, because turn_ selects one of two sets of words (find_row_words), and
  // consecutive reductions must use different sets.
  VERBENA_DEVICE Quantiser make_quantiser() {
    const Quantiser quantiser(norm_.quantised, norm_.rows, row_, vectors_, has(kAlignment), owner_,
                              turn_ + 1);
    if (quantiser.has_row_scale()) ++turn_;
    return quantiser;
  }
  template <typename LoadSum>
  VERBENA_DEVICE float find_largest(const Quantiser& quantiser, const Several& rounded,
                                    const LoadSum& load_sum) {
    float largest = 0;
    if (!quantiser.has_row_scale()) return largest;
    for_kept<0>([&](uint64_t, const Floats&, const auto&, uint32_t k) {
      largest = choose_larger(largest, Quantiser::find_magnitude(rounded.of[k]));
    });
    for_others(load_sum, [&](uint64_t, const Floats& h, const auto& find_factors, uint32_t) {
      largest = choose_larger(largest, Quantiser::find_magnitude(make_output(h, find_factors())));
    });
    return largest;
  }

  // Publishes the partial result of a warp for the 32 vectors that include `vector`.
  VERBENA_DEVICE void put_piece(uint64_t vector, float value) const {
    const uint64_t piece = vector / kWarpLanes;
    const uint32_t word = find_first_word(turn_) + static_cast<uint32_t>(piece % kCountWords);
    if (!Owner::kIsOfCluster) {
      if (vector - lane() >= count_vectors_) return;
      // All pieces of a word are processed by the same warp, in order.
      if (piece >= kCountWords && lane() == 0) {
        float before = 0;
        (void)owner_.take(word, turn_, before);
        value = add(before, value);
      }
    }
    owner_.put(word, value, turn_);
  }
  VERBENA_DEVICE uint32_t count_words() const {
    uint64_t pieces = (count_vectors_ + kWarpLanes - 1) / kWarpLanes;
    if (Owner::kIsOfCluster) {
      pieces = 0;
      VERBENA_UNROLL
      for (uint32_t k = 0; k < kKept; ++k) pieces += is_kept(k) ? vectors_.step / kWarpLanes : 0;
    }
    return pieces < kCountWords ? static_cast<uint32_t>(pieces) : kCountWords;
  }
  // Returns true if any thread of the row has a k-th vector.
  VERBENA_DEVICE bool is_kept(uint32_t k) const { return k * uint64_t{vectors_.step} < count_vectors_; }
  // Calls `body(vector, h, find_factors, k)` for each of the thread's vectors. k is kKept for vectors that
  // are not kept in registers.
  template <typename LoadSum, typename Body>
  VERBENA_DEVICE void for_vectors(const LoadSum& load_sum, const Body& body) {
    for_kept<0>(body);
    for_others(load_sum, body);
  }
  template <typename LoadSum, typename Body>
  VERBENA_DEVICE void for_others(const LoadSum& load_sum, const Body& body) {
    for (uint64_t vector = find_vector(kKept);
         !Owner::kIsOfCluster && vector - vectors_.first < count_vectors_; vector += vectors_.step) {
      Floats h;
      add_values(load_sum(vector), load_residual(vector), h);
      body(
          vector, h, [&] { return find_factors(load_weight(vector)); }, kKept);
    }
  }

  // A loop over the kept vectors. The loop is written as a recursion, so that every compiler unrolls the
  // loop. Unrolling is necessary, because the loop indexes registers.
  template <uint32_t k, typename Body>
  VERBENA_DEVICE void for_kept(const Body& body) {
    if constexpr (k < kKept) {
      if (!is_kept(k)) return;
      body(
          find_vector(k), kept_[k], [&] { return factors_[k]; }, k);
      for_kept<k + 1>(body);
    }
  }

  VERBENA_DEVICE Elements load_residual(uint64_t vector) const {
    if (!has(kResidual)) return {};
    return load_elements(norm_.residual_in + row_ * norm_.residual_in_stride, vector, has(kAlignment));
  }
  VERBENA_DEVICE Elements load_weight(uint64_t vector) const {
    if (!has(kWeight)) return {};
    return load_elements(norm_.weight, vector, has(kAlignment));
  }
  VERBENA_DEVICE void add_values(const Elements& x, const Elements& residual, Floats& h) const {
    Sums sums;
    sums.begin(x);
    if (has(kResidual)) sums.add(residual);
    if (has(kRoundedSum)) sums.begin(sums.round());
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kElements; ++i) h[i] = sums.sums[i];
  }

  // Returns weight_offset + weight, by which the normalised elements are multiplied.
  VERBENA_DEVICE Sums find_factors(const Elements& weights) const {
    Sums factors;
    factors.begin(weights);
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kElements; ++i)
      factors.sums[i] = add(norm_.weight_offset, !has(kWeight) ? 1 : factors.sums[i]);
    return factors;
  }
  // Returns a vector of the output, with zeros after the end of the row.
  VERBENA_DEVICE Elements make_output(const Floats& h, const Sums& factors) const {
    Sums sums;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kElements; ++i) sums.sums[i] = multiply(h[i], inverse_root_);
    if (has(kRoundedNormed)) sums.begin(sums.round());
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kElements; ++i) sums.sums[i] = multiply(sums.sums[i], factors.sums[i]);
    return sums.round();
  }
  VERBENA_DEVICE void store_residual(uint64_t vector, const Floats& h) const {
    if (!has(kResidualOut)) return;
    Sums sums;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kElements; ++i) sums.sums[i] = h[i];
    store_elements(residual_out_, vector, sums.round(), has(kAlignment));
  }

  const RmsNorm<T>& norm_;
  Owner owner_;
  RowVectors vectors_;
  uint64_t count_vectors_, row_ = 0;
  uint32_t has_, count_words_, turn_ = 0;
  float epsilon_, inverse_hidden_, inverse_root_ = 0;
  Floats kept_[kMaxKept];
  Elements residuals_[kMaxKept], weights_[kMaxKept];
  Sums factors_[kMaxKept];
  T *residual_out_ = nullptr, *output_ = nullptr;  // addresses of the row
};

}  // namespace detail

// Normalises rows `first`, `first + step`, and so on, below `end`, of a tensor x in memory. All threads of a
// block of 1, 2, 4, 8, 16 or 32 warps make the call. Earlier writes of these threads must be visible to the
// whole block.
// @param x  may be the same tensor as residual_out or output if the strides are equal
// @param x_stride  distance between rows of x, in elements
template <uint32_t kKept = 2, typename T>
VERBENA_DEVICE void norm_rows(const RmsNorm<T>& norm, const T* x, uint64_t x_stride, uint64_t first,
                              uint64_t end, uint64_t step = 1) {
  detail::RowNorm<T, kKept> rows(norm);
  const bool is_aligned = detail::is_vector(x, x_stride);
  // This barrier makes sure that an earlier norm of this block has read its words (find_row_words).
  sync_block();
  for (uint64_t row = first; row < end; row += step)
    rows.apply(row,
               [&](uint64_t vector) { return rows.load_elements(x + row * x_stride, vector, is_aligned); });
}

// A function object that calls norm_rows(), for functions that take the norm as a parameter.
struct NormRows {
  template <typename T>
  VERBENA_DEVICE void operator()(const RmsNorm<T>& norm, const T* x, uint64_t first, uint64_t end) const {
    norm_rows(norm, x, norm.hidden, first, end);
  }
};

}  // namespace verbena::device

#endif
