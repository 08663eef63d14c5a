// Reduces elements across ranks: sum, mean, minimum and maximum. The type of the elements may be known at
// compile time or only at run time. Floating-point elements are converted to float, added in rank order, and
// rounded once (packed.cuh). int32 wraps on overflow, and its mean truncates toward zero. Minimum and maximum
// propagate NaN.
#ifndef VERBENA_DEVICE_REDUCTION_CUH
#define VERBENA_DEVICE_REDUCTION_CUH

#include "verbena/device/packed.cuh"

namespace verbena::device {

// The values are the same as in verbena_ops_type and verbena_ops_reduction (verbena/ops.h).
enum class DataType : uint32_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2, kInt32 = 3, kE4m3 = 4 };
enum class Reduction : uint32_t { kSum = 0, kMean = 1, kMin = 2, kMax = 3 };

namespace detail {

template <typename Sum>
VERBENA_DEVICE Sum add_values(Sum a, Sum b) {
  if constexpr (__is_same(Sum, int32_t)) {
    return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  } else {
    return static_cast<Sum>(a + b);
  }
}
template <typename Sum>
VERBENA_DEVICE Sum choose_addend(Sum a, Sum b, bool is_min) {
  const bool takes_second = b != b || (is_min ? b < a : b > a);  // FAULT(nan_is_lost)
  return takes_second ? b : a;
}

}  // namespace detail

namespace detail {

// The sums of the elements in a value of type `Bits`, which has 4, 8 or 16 bytes.
template <typename T, typename Bits>
using SumsOf = PackedSum<T, sizeof(Bits)>;

// Adds the addends of ranks `first` to `first + count - 1`.
template <typename T, int kMaxCount, typename Bits>
VERBENA_DEVICE void add_in_order(SumsOf<T, Bits>& sums, Reduction reduction, const Bits (&addends)[kMaxCount],
                                 int32_t first, int32_t count) {
  using Elements = typename SumsOf<T, Bits>::Elements;
  const bool is_sum = reduction <= Reduction::kMean, is_min = reduction == Reduction::kMin;
  VERBENA_UNROLL
  for (int32_t addend = 0; addend < kMaxCount; ++addend) {
    if (addend >= count) break;
    const auto numbers = __builtin_bit_cast(Elements, addends[addend]);
    if (addend == 0 && first == 0) {  // FAULT(later_terms_begin_a_sum)
      sums.begin(numbers);
      continue;
    }
    SumsOf<T, Bits> other;
    other.begin(numbers);
    VERBENA_UNROLL
    for (uint32_t i = 0; i < sums.kCount; ++i) {
      sums.sums[i] = is_sum ? add_values(sums.sums[i], other.sums[i])
                            : choose_addend(sums.sums[i], other.sums[i], is_min);
    }
  }
}
template <typename T, typename Bits>
VERBENA_DEVICE Bits round_sums(SumsOf<T, Bits>& sums, Reduction reduction, int32_t ranks) {
  if (reduction == Reduction::kMean) {
    VERBENA_UNROLL
    for (uint32_t i = 0; i < sums.kCount; ++i) {
      using Sum = typename Element<T>::Sum;
      sums.sums[i] = static_cast<Sum>(sums.sums[i] / static_cast<Sum>(ranks));
    }
  }
  return __builtin_bit_cast(Bits, sums.round());
}

}  // namespace detail

// A reduction whose type and operation are known at compile time. Every reduction has a type Sums, which
// accumulates 4, 8 or 16 bytes of contiguous elements. add() adds the elements of `count` ranks, starting
// with rank `first`; consecutive calls must cover all ranks in order. finish() returns the result.
template <typename T, Reduction kReduction = Reduction::kSum>
struct ReduceAs {
  template <typename Bits>
  using Sums = detail::SumsOf<T, Bits>;

  template <int kMaxCount, typename Bits>
  VERBENA_DEVICE void add(Sums<Bits>& sums, const Bits (&addends)[kMaxCount], int32_t first,
                          int32_t count) const {
    detail::add_in_order<T>(sums, kReduction, addends, first, count);
  }
  template <typename Bits>
  VERBENA_DEVICE Bits finish(Sums<Bits>& sums, int32_t ranks) const {
    return detail::round_sums<T, Bits>(sums, kReduction, ranks);
  }
};

// A reduction whose type and operation are known at run time; each call has a branch. Sums of float, half and
// bfloat16 are the fast cases. All other cases are in functions that are not inlined, so that they do not
// slow down the fast cases.
struct ReduceAny {
  DataType type;
  Reduction reduction;

  template <typename Bits>
  struct Sums {
    uint32_t words[sizeof(Bits)] = {};  // enough for e4m3, which needs one word per byte
  };

  template <int kMaxCount, typename Bits>
  VERBENA_DEVICE void add(Sums<Bits>& sums, const Bits (&addends)[kMaxCount], int32_t first,
                          int32_t count) const {
    if (reduction == Reduction::kSum) {
      if (type == DataType::kBfloat16) return add_as<Bfloat16>(sums, Reduction::kSum, addends, first, count);
      if (type == DataType::kFloat16) return add_as<Half>(sums, Reduction::kSum, addends, first, count);
      if (type == DataType::kFloat32) return add_as<float>(sums, Reduction::kSum, addends, first, count);
    }
    // A variable whose address is passed to a function is kept in memory. Passing a copy keeps the caller's
    // variable in registers.
    Sums<Bits> copy = sums;
    for (int32_t addend = 0; addend < kMaxCount; ++addend) {
      if (addend >= count) break;
      const Bits one[1] = {addends[addend]};
      add_one(*this, copy, one, first + addend);
    }
    sums = copy;
  }
  template <typename Bits>
  VERBENA_DEVICE Bits finish(Sums<Bits>& sums, int32_t ranks) const {
    if (reduction == Reduction::kSum) {
      if (type == DataType::kBfloat16) return finish_as<Bfloat16>(sums, Reduction::kSum, ranks);
      if (type == DataType::kFloat16) return finish_as<Half>(sums, Reduction::kSum, ranks);
      if (type == DataType::kFloat32) return finish_as<float>(sums, Reduction::kSum, ranks);
    }
    Sums<Bits> copy = sums;
    return finish_any(*this, copy, ranks);
  }

  // The unrounded sums of the elements in one value of type `Bits` occupy one or more words; count_words()
  // returns the number of these words. merge_words() combines a word of the sums over some ranks with the
  // corresponding word of the sums over later ranks.
  template <typename Bits>
  VERBENA_DEVICE uint32_t count_words() const {
    return type == DataType::kE4m3 ? sizeof(Bits)
           : type == DataType::kFloat16 || type == DataType::kBfloat16
               ? static_cast<uint32_t>(sizeof(Bits)) / 2
               : static_cast<uint32_t>(sizeof(Bits)) / 4;
  }
  VERBENA_DEVICE uint32_t merge_words(uint32_t sum, uint32_t later) const {
    const bool is_min = reduction == Reduction::kMin;
    const auto merge = [&](auto a, auto b) {
      return __builtin_bit_cast(uint32_t, reduction <= Reduction::kMean
                                              ? detail::add_values(a, b)
                                              : detail::choose_addend(a, b, is_min));
    };
    // FAULT(integers_merge_as_floats)
    if (type == DataType::kInt32) return merge(static_cast<int32_t>(sum), static_cast<int32_t>(later));
    return merge(__builtin_bit_cast(float, sum), __builtin_bit_cast(float, later));
  }

 private:
  friend struct ReduceFloats;

  template <typename Body>
  VERBENA_DEVICE void choose(const Body& body) const {
    switch (type) {
      case DataType::kFloat32:
        return body(float{});
      case DataType::kFloat16:
        return body(Half{});
      case DataType::kInt32:
        return body(int32_t{});
      case DataType::kE4m3:
        return body(E4m3{});
      default:
        return body(Bfloat16{});
    }
  }
  template <typename Bits>
  VERBENA_DEVICE_FAR static void add_one(const ReduceAny& self, Sums<Bits>& sums, const Bits (&addend)[1],
                                         int32_t rank) {
    self.choose([&](auto number) { add_as<decltype(number)>(sums, self.reduction, addend, rank, 1); });
  }
  template <typename Bits>
  VERBENA_DEVICE_FAR static Bits finish_any(const ReduceAny& self, Sums<Bits>& sums, int32_t ranks) {
    Bits result{};
    self.choose([&](auto number) { result = finish_as<decltype(number)>(sums, self.reduction, ranks); });
    return result;
  }
  template <typename T, typename Bits>
  VERBENA_DEVICE static detail::SumsOf<T, Bits> take(const Sums<Bits>& sums) {
    detail::SumsOf<T, Bits> typed;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < typed.kCount; ++i)
      typed.sums[i] = __builtin_bit_cast(typename Element<T>::Sum, sums.words[i]);
    return typed;
  }
  template <typename T, int kMaxCount, typename Bits>
  VERBENA_DEVICE static void add_as(Sums<Bits>& sums, Reduction reduction, const Bits (&addends)[kMaxCount],
                                    int32_t first, int32_t count) {
    auto typed = take<T>(sums);
    detail::add_in_order<T>(typed, reduction, addends, first, count);
    VERBENA_UNROLL
    for (uint32_t i = 0; i < typed.kCount; ++i) sums.words[i] = __builtin_bit_cast(uint32_t, typed.sums[i]);
  }
  template <typename T, typename Bits>
  VERBENA_DEVICE static Bits finish_as(Sums<Bits>& sums, Reduction reduction, int32_t ranks) {
    auto typed = take<T>(sums);
    return detail::round_sums<T, Bits>(typed, reduction, ranks);
  }
};

// A reduction for sums of float, half and bfloat16 only. The reduction makes no function calls, because
// function calls would spill registers.
struct ReduceFloats {
  DataType type;
  static constexpr Reduction reduction = Reduction::kSum;

  template <typename Bits>
  using Sums = ReduceAny::Sums<Bits>;

  template <int kMaxCount, typename Bits>
  VERBENA_DEVICE void add(Sums<Bits>& sums, const Bits (&addends)[kMaxCount], int32_t first,
                          int32_t count) const {
    constexpr auto kSum = Reduction::kSum;
    if (type == DataType::kBfloat16) return ReduceAny::add_as<Bfloat16>(sums, kSum, addends, first, count);
    if (type == DataType::kFloat16) return ReduceAny::add_as<Half>(sums, kSum, addends, first, count);
    ReduceAny::add_as<float>(sums, kSum, addends, first, count);
  }
  template <typename Bits>
  VERBENA_DEVICE Bits finish(Sums<Bits>& sums, int32_t ranks) const {
    constexpr auto kSum = Reduction::kSum;
    if (type == DataType::kBfloat16) return ReduceAny::finish_as<Bfloat16>(sums, kSum, ranks);
    if (type == DataType::kFloat16) return ReduceAny::finish_as<Half>(sums, kSum, ranks);
    return ReduceAny::finish_as<float>(sums, kSum, ranks);
  }
  template <typename Bits>
  VERBENA_DEVICE uint32_t count_words() const {
    return static_cast<uint32_t>(sizeof(Bits)) / (type == DataType::kFloat32 ? 4 : 2);
  }
  VERBENA_DEVICE static uint32_t merge_words(uint32_t sum, uint32_t later) {
    return __builtin_bit_cast(
        uint32_t, detail::add_values(__builtin_bit_cast(float, sum), __builtin_bit_cast(float, later)));
  }
};

VERBENA_HOST_DEVICE constexpr uint32_t get_element_bytes(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kInt32 ? 4 : type == DataType::kE4m3 ? 1 : 2;
}

}  // namespace verbena::device

#endif
