// Loads, stores and sums the elements of tensors in vectors of 4 to 32 bytes. Half, Bfloat16, E4m3 and E5m2
// have the same representation as CUDA's __half, __nv_bfloat16, __nv_fp8_e4m3 and __nv_fp8_e5m2, so pointers
// can be cast between them. Elements of these types are summed in float and rounded once. Elements of any
// other two-byte class are also summed in float, by the conversions of the class. All other types are summed
// in their own type.
//
// Rounding is to nearest even. Values too large for a half or a bfloat16 become infinite. Values too large
// for e4m3 or e5m2, including infinities, become the largest finite value (448 or 57344). NaNs become 0x7fff
// or 0x7f. Conversions use PTX instructions where these exist, and otherwise arithmetic (e4m3 and e5m2 below
// sm_89, bfloat16 below sm_80, and on the host). PTX and arithmetic give the same bits.
#ifndef VERBENA_DEVICE_PACKED_CUH
#define VERBENA_DEVICE_PACKED_CUH

#include "verbena/device/memory_order.cuh"

namespace verbena::device {

struct Half {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};
struct E4m3 {  // 1 sign bit, 4 exponent bits, 3 mantissa bits; no infinities
  uint8_t bits;
};
struct E5m2 {
  uint8_t bits;
};

namespace detail {

VERBENA_DEVICE uint32_t to_bits(float value) {
  return __builtin_bit_cast(uint32_t, value);
}
VERBENA_DEVICE float from_bits(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

// A floating-point format with kExponent exponent bits and kMantissa mantissa bits, as in IEEE 754. If the
// format has no infinities, its largest exponent is used for finite values, too.
template <int kExponent, int kMantissa, bool kHasInfinity, bool kSaturates>
struct SmallFloat {
  static constexpr int kShift = 23 - kMantissa;  // mantissa bits of a float minus mantissa bits of this
                                                 // format
  static constexpr uint32_t kBits = 1 + kExponent + kMantissa, kSign = 1u << (kBits - 1);
  static constexpr uint32_t kNan = kSign - 1;
  static constexpr uint32_t kInfinity = ((1u << kExponent) - 1) << kMantissa;
  static constexpr uint32_t kLargest = (kHasInfinity ? kInfinity : kNan) - 1;
  static constexpr uint32_t kOverflow = kSaturates ? kLargest : kInfinity;
  // The exponent bias of a float minus the exponent bias of this format, at the position of a float's
  // exponent.
  static constexpr uint32_t kRebias = static_cast<uint32_t>(128 - (1 << (kExponent - 1))) << 23;
  static constexpr uint32_t kSmallestNormal = kRebias + (1u << 23);  // as the bits of a float
  // The bits of a float that is a power of two. Adding this float to a value rounds the value to a multiple
  // of this type's smallest subnormal number.
  static constexpr uint32_t kSubnormalUnit = kRebias + (static_cast<uint32_t>(kShift + 1) << 23);

  VERBENA_DEVICE static float widen(uint32_t bits) {
    const uint32_t sign = (bits & kSign) << (32 - kBits), magnitude = bits & (kSign - 1);
    const uint32_t moved = magnitude << kShift;
    uint32_t result = moved + kRebias;
    if (magnitude < (1u << kMantissa)) {
      // Avoids subnormal floats, which may be flushed to zero.
      result = to_bits(from_bits(kSmallestNormal + moved) - from_bits(kSmallestNormal));
    } else if (kHasInfinity ? magnitude >= kInfinity : magnitude == kNan) {
      result = magnitude == kInfinity && kHasInfinity ? 0x7f800000u : 0x7fffffffu;
    }
    return from_bits(sign | result);
  }

  VERBENA_DEVICE static uint32_t narrow(float value) {
    const uint32_t bits = to_bits(value), magnitude = bits & 0x7fffffffu;
    const uint32_t sign = bits >> 31 << (kBits - 1);
    if (magnitude > 0x7f800000u) return kNan;
    // Adds half of the last bit that is kept. If this bit is 0, adds one less, so that ties round to even.
    const uint32_t rounded = magnitude + ((1u << (kShift - 1)) - 1) + (magnitude >> kShift & 1);
    uint32_t result = (rounded - kRebias) >> kShift;
    if (magnitude < kSmallestNormal) {
      result = to_bits(from_bits(magnitude) + from_bits(kSubnormalUnit)) - kSubnormalUnit;
    } else if (rounded >> kShift > (kLargest + (kRebias >> kShift))) {
      result = kOverflow;
    }
    return sign | result;
  }
};

using HalfArithmetic = SmallFloat<5, 10, true, false>;
using E4m3Arithmetic = SmallFloat<4, 3, false, true>;
using E5m2Arithmetic = SmallFloat<5, 2, true, true>;

// A bfloat16 is the upper half of a float.
struct Bfloat16Arithmetic {
  VERBENA_DEVICE static float widen(uint32_t bits) { return from_bits(bits << 16); }
  VERBENA_DEVICE static uint32_t narrow(float value) {
    const uint32_t bits = to_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  }
};

// Converts all elements of a word. The first element is in the lowest bits.
template <typename Arithmetic, uint32_t kBits>
struct WordArithmetic {
  static constexpr uint32_t kPerUnit = 32 / kBits;

  VERBENA_DEVICE static void widen(uint32_t word, float* numbers) {
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kPerUnit; ++i)
      numbers[i] = Arithmetic::widen(word >> (kBits * i) & ((1u << kBits) - 1));
  }
  VERBENA_DEVICE static uint32_t narrow(const float* numbers) {
    uint32_t word = 0;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kPerUnit; ++i) word |= Arithmetic::narrow(numbers[i]) << (kBits * i);
    return word;
  }
};

#if VERBENA_PTX
VERBENA_DEVICE void widen_halves(uint32_t word, float* numbers) {
  asm("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %2;\n\t"
      "cvt.f32.f16 %0, low;\n\tcvt.f32.f16 %1, high;\n\t}"
      : "=f"(numbers[0]), "=f"(numbers[1])
      : "r"(word));
}
// The instruction puts its first source operand into the upper half of the result.
#if VERBENA_ARCH >= 800
#define VERBENA_NARROW_PAIR(type) \
  asm("cvt.rn." type "x2.f32 %0, %1, %2;" : "=r"(word) : "f"(numbers[1]), "f"(numbers[0]))
#endif
#if VERBENA_ARCH >= 890
// Converts 8-bit elements to halves first, because a half can represent every 8-bit element exactly.
#define VERBENA_WIDEN_BYTES(type)                                                      \
  uint32_t low, high;                                                                  \
  asm("{\n\t.reg .b16 first, second;\n\tmov.b32 {first, second}, %2;\n\t"              \
      "cvt.rn.f16x2." type "x2 %0, first;\n\tcvt.rn.f16x2." type "x2 %1, second;\n\t}" \
      : "=r"(low), "=r"(high)                                                          \
      : "r"(word));                                                                    \
  widen_halves(low, numbers);                                                          \
  widen_halves(high, numbers + 2)
#define VERBENA_NARROW_BYTES(type)                                                           \
  asm("{\n\t.reg .b16 first, second;\n\tcvt.rn.satfinite." type                              \
      "x2.f32 first, %2, %1;\n\t"                                                            \
      "cvt.rn.satfinite." type "x2.f32 second, %4, %3;\n\tmov.b32 %0, {first, second};\n\t}" \
      : "=r"(word)                                                                           \
      : "f"(numbers[0]), "f"(numbers[1]), "f"(numbers[2]), "f"(numbers[3]))
#endif
#endif

using HalfWord = WordArithmetic<HalfArithmetic, 16>;
using Bfloat16Word = WordArithmetic<Bfloat16Arithmetic, 16>;
using E4m3Word = WordArithmetic<E4m3Arithmetic, 8>;
using E5m2Word = WordArithmetic<E5m2Arithmetic, 8>;

}  // namespace detail

// Defines the unit of memory in which elements are accessed, and the type in which elements are summed. The
// first element is in the lowest bits of the unit. A type without a specialisation below must be convertible
// to and from `Sum`.
template <typename T>
struct Element {
  using Unit = decltype(detail::make_bits<(sizeof(T) < 4 ? size_t{4} : sizeof(T))>());
  static constexpr uint32_t kPerUnit = sizeof(Unit) / sizeof(T);

  VERBENA_HOST_DEVICE static constexpr auto choose_sum() {
    if constexpr (sizeof(T) == 2 && __is_class(T)) {
      return float{};
    } else {
      return T{};
    }
  }
  using Sum = decltype(choose_sum());

  VERBENA_DEVICE static void widen(Unit unit, Sum* numbers) {
    const auto several = __builtin_bit_cast(Several, unit);
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kPerUnit; ++i) numbers[i] = static_cast<Sum>(several.values[i]);
  }
  VERBENA_DEVICE static Unit narrow(const Sum* numbers) {
    Several several;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kPerUnit; ++i) several.values[i] = static_cast<T>(numbers[i]);
    return __builtin_bit_cast(Unit, several);
  }

 private:
  struct Several {
    T values[kPerUnit];
  };
};

template <>
struct Element<Half> {
  using Unit = uint32_t;
  using Sum = float;
  static constexpr uint32_t kPerUnit = 2;

  VERBENA_DEVICE static void widen(Unit word, Sum* numbers) {
#if VERBENA_PTX
    detail::widen_halves(word, numbers);
#else
    detail::HalfWord::widen(word, numbers);
#endif
  }
  VERBENA_DEVICE static Unit narrow(const Sum* numbers) {
#if VERBENA_PTX && VERBENA_ARCH >= 800
    Unit word;
    VERBENA_NARROW_PAIR("f16");
    return word;
#else
    return detail::HalfWord::narrow(numbers);
#endif
  }
};

template <>
struct Element<Bfloat16> {
  using Unit = uint32_t;
  using Sum = float;
  static constexpr uint32_t kPerUnit = 2;

  VERBENA_DEVICE static void widen(Unit word, Sum* numbers) { detail::Bfloat16Word::widen(word, numbers); }
  VERBENA_DEVICE static Unit narrow(const Sum* numbers) {
#if VERBENA_PTX && VERBENA_ARCH >= 800
    Unit word;
    VERBENA_NARROW_PAIR("bf16");
    return word;
#else
    return detail::Bfloat16Word::narrow(numbers);
#endif
  }
};

template <>
struct Element<E4m3> {
  using Unit = uint32_t;
  using Sum = float;
  static constexpr uint32_t kPerUnit = 4;

  VERBENA_DEVICE static void widen(Unit word, Sum* numbers) {
#if VERBENA_PTX && VERBENA_ARCH >= 890
    using namespace detail;
    VERBENA_WIDEN_BYTES("e4m3");
#else
    detail::E4m3Word::widen(word, numbers);
#endif
  }
  VERBENA_DEVICE static Unit narrow(const Sum* numbers) {
#if VERBENA_PTX && VERBENA_ARCH >= 890
    Unit word;
    VERBENA_NARROW_BYTES("e4m3");
    return word;
#else
    return detail::E4m3Word::narrow(numbers);
#endif
  }
};

template <>
struct Element<E5m2> {
  using Unit = uint32_t;
  using Sum = float;
  static constexpr uint32_t kPerUnit = 4;

  VERBENA_DEVICE static void widen(Unit word, Sum* numbers) {
#if VERBENA_PTX && VERBENA_ARCH >= 890
    using namespace detail;
    VERBENA_WIDEN_BYTES("e5m2");
#else
    detail::E5m2Word::widen(word, numbers);
#endif
  }
  VERBENA_DEVICE static Unit narrow(const Sum* numbers) {
#if VERBENA_PTX && VERBENA_ARCH >= 890
    Unit word;
    VERBENA_NARROW_BYTES("e5m2");
    return word;
#else
    return detail::E5m2Word::narrow(numbers);
#endif
  }
};

// A vector of 4, 8, 16 or 32 bytes of contiguous elements, or a single element in the lowest bits of its
// unit.
template <typename T, uint32_t kBytes = 16>
struct Packed {
  using Unit = typename Element<T>::Unit;
  static_assert(kBytes == sizeof(T) ||
                    ((kBytes == 4 || kBytes == 8 || kBytes == 16 || kBytes == 32) && kBytes >= sizeof(Unit)),
                "verbena: kBytes must be 4, 8, 16 or 32 and hold an element, or be sizeof(T)");
  static constexpr uint32_t kUnits = kBytes < sizeof(Unit) ? 1 : kBytes / sizeof(Unit);
  static constexpr uint32_t kCount = kBytes / sizeof(T);

  Unit units[kUnits];
};

namespace detail {

struct TwoVectors {
  Vector16 first, second;
};

}  // namespace detail

// Load and store a vector in global memory by weak accesses. The address must be aligned to kBytes. A vector
// of 32 bytes only needs an alignment of 16 bytes, and takes two accesses.
template <uint32_t kBytes = 16, typename T>
VERBENA_DEVICE Packed<T, kBytes> load_packed(const T* address) {
  if constexpr (kBytes == 32) {
    const auto* const vectors = reinterpret_cast<const Vector16*>(address);
    const detail::TwoVectors both{
        load<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(vectors),
        load<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(vectors + 1)};
    return __builtin_bit_cast(Packed<T, kBytes>, both);
  } else {
    using Bits = decltype(detail::make_bits<kBytes>());
    const auto bits = load<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(
        reinterpret_cast<const Bits*>(address));
    if constexpr (sizeof(Bits) == sizeof(Packed<T, kBytes>)) {
      return __builtin_bit_cast(Packed<T, kBytes>, bits);
    } else {
      return {{bits}};
    }
  }
}
template <typename T, uint32_t kBytes>
VERBENA_DEVICE void store_packed(T* address, const Packed<T, kBytes>& packed) {
  if constexpr (kBytes == 32) {
    auto* const vectors = reinterpret_cast<Vector16*>(address);
    const auto both = __builtin_bit_cast(detail::TwoVectors, packed);
    store<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(vectors, both.first);
    store<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(vectors + 1, both.second);
  } else {
    using Bits = decltype(detail::make_bits<kBytes>());
    auto* const to = reinterpret_cast<Bits*>(address);
    if constexpr (sizeof(Bits) == sizeof(packed)) {
      store<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(to,
                                                                            __builtin_bit_cast(Bits, packed));
    } else {
      store<Order::kWeak, Scope::kThreads, Cache::kDefault, Space::kGlobal>(
          to, static_cast<Bits>(packed.units[0]));
    }
  }
}

// Adds up packed elements. The sums have the type in which elements are added. If every rank adds the
// elements in rank order, all ranks get the same bits.
template <typename T, uint32_t kBytes = 16>
struct PackedSum {
  using Elements = Packed<T, kBytes>;
  using Sum = typename Element<T>::Sum;
  static constexpr uint32_t kCount = Elements::kCount;  // number of elements of `sums` that are used

  Sum sums[Elements::kUnits * Element<T>::kPerUnit];

  VERBENA_DEVICE void begin(const Elements& packed) {
    VERBENA_UNROLL
    for (uint32_t i = 0; i < Elements::kUnits; ++i)
      Element<T>::widen(packed.units[i], sums + i * Element<T>::kPerUnit);
  }
  VERBENA_DEVICE void add(const Elements& packed) {
    PackedSum other;
    other.begin(packed);
    VERBENA_UNROLL
    for (uint32_t i = 0; i < kCount; ++i) sums[i] = static_cast<Sum>(sums[i] + other.sums[i]);
  }
  VERBENA_DEVICE Elements round() const {
    Elements packed;
    VERBENA_UNROLL
    for (uint32_t i = 0; i < Elements::kUnits; ++i)
      packed.units[i] = Element<T>::narrow(sums + i * Element<T>::kPerUnit);
    return packed;
  }
};

// Convert a single element.
template <typename T>
VERBENA_DEVICE typename Element<T>::Sum widen(T number) {
  PackedSum<T, sizeof(T)> sum;
  sum.begin({{__builtin_bit_cast(detail::Bits<T>, number)}});
  return sum.sums[0];
}
template <typename T>
VERBENA_DEVICE T narrow(typename Element<T>::Sum value) {
  const PackedSum<T, sizeof(T)> sum{{value}};
  return __builtin_bit_cast(T, static_cast<detail::Bits<T>>(sum.round().units[0]));
}

}  // namespace verbena::device

#endif
