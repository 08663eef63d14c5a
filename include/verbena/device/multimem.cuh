// Accesses the memory of all GPUs of a multicast group at once, through NVLink switches (sm_90). A load
// returns a reduction of the values of all GPUs; stores and updates go to all GPUs. Addresses are multicast
// addresses, for example from symm_lsa_multicast_ptr(). If the same memory is accessed both by its multicast
// address and by its ordinary address, call fence_multicast() and a barrier between these accesses. All
// accesses are relaxed at system scope; to make an access a release, execute a fence before it.
//
// The emulation accesses the GPUs one after the other, in the order of the multicast group.
#ifndef VERBENA_DEVICE_MULTIMEM_CUH
#define VERBENA_DEVICE_MULTIMEM_CUH

#include "verbena/device/atomic.cuh"
#include "verbena/device/packed.cuh"

namespace verbena::device {

// Orders this thread's accesses by multicast address and by ordinary address, at system scope.
VERBENA_DEVICE void fence_multicast() {
#if VERBENA_EMULATED
  fence<Order::kAcquireRelease, Scope::kSystem>();
#elif VERBENA_PTX
  asm volatile("fence.proxy.alias;" ::: "memory");
#endif
}

namespace detail {

#if VERBENA_EMULATED
// Calls `body(place)` once for each GPU of the group, with the address of that GPU's memory.
template <typename T, typename Body>
void at_each_place(T* address, const Body& body) {
  constexpr size_t kMaxCount = 64;
  void* places[kMaxCount];
  const size_t count = emulation::find_multicast(address, sizeof(T), places, kMaxCount);
  for (size_t i = 0; i < count; ++i) body(static_cast<T*>(places[i]));
}
template <Operation operation, typename T>
T combine(T left, T right) {
  switch (operation) {
    case Operation::kAdd:
      return static_cast<T>(left + right);
    case Operation::kMin:
      return left < right ? left : right;
    case Operation::kMax:
      return left > right ? left : right;
    case Operation::kAnd:
      return left & right;
    case Operation::kOr:
      return left | right;
    default:
      return left ^ right;
  }
}
#endif

template <Operation operation>
inline constexpr bool kIsReduction =
    operation != Operation::kExchange && operation != Operation::kCompareExchange;

}  // namespace detail

// Returns the reduction of the words of all GPUs: the sum (modulo 2^32 or 2^64), minimum, maximum, or bitwise
// AND, OR or XOR.
// @tparam T  an integer of 4 or 8 bytes; minimum and maximum are signed if T is signed
template <Operation operation, typename T>
VERBENA_DEVICE T multimem_load_reduce(const T* address) {
  static_assert(detail::kIsWord<T> && detail::kIsReduction<operation>,
                "verbena: a multicast reduction needs words of 4 or 8 bytes and a reducing operation");
  T result{};
#if VERBENA_EMULATED
  bool is_first = true;
  detail::at_each_place(address, [&](const T* place) {
    const T one = load_relaxed<Scope::kSystem>(place);
    result = is_first ? one : detail::combine<operation>(result, one);
    is_first = false;
  });
#elif VERBENA_PTX
#define VERBENA_LOAD_REDUCE(opcode, type, constraint)                           \
  asm volatile("multimem.ld_reduce.relaxed.sys.global" opcode type " %0, [%1];" \
               : "=" constraint(result)                                         \
               : "l"(address)                                                   \
               : "memory")
#define VERBENA_LOAD_REDUCE_BY_SIGN(opcode)     \
  if constexpr (sizeof(T) == 4 && T(-1) < T(0)) \
    VERBENA_LOAD_REDUCE(opcode, ".s32", "r");   \
  else if constexpr (sizeof(T) == 4)            \
    VERBENA_LOAD_REDUCE(opcode, ".u32", "r");   \
  else if constexpr (T(-1) < T(0))              \
    VERBENA_LOAD_REDUCE(opcode, ".s64", "l");   \
  else                                          \
    VERBENA_LOAD_REDUCE(opcode, ".u64", "l")
#define VERBENA_LOAD_REDUCE_BY_SIZE(opcode, type) \
  if constexpr (sizeof(T) == 4)                   \
    VERBENA_LOAD_REDUCE(opcode, type "32", "r");  \
  else                                            \
    VERBENA_LOAD_REDUCE(opcode, type "64", "l")
  if constexpr (operation == Operation::kAdd) {
    VERBENA_LOAD_REDUCE_BY_SIZE(".add", ".u");
  } else if constexpr (operation == Operation::kMin) {
    VERBENA_LOAD_REDUCE_BY_SIGN(".min");
  } else if constexpr (operation == Operation::kMax) {
    VERBENA_LOAD_REDUCE_BY_SIGN(".max");
  } else if constexpr (operation == Operation::kAnd) {
    VERBENA_LOAD_REDUCE_BY_SIZE(".and", ".b");
  } else if constexpr (operation == Operation::kOr) {
    VERBENA_LOAD_REDUCE_BY_SIZE(".or", ".b");
  } else {
    VERBENA_LOAD_REDUCE_BY_SIZE(".xor", ".b");
  }
#undef VERBENA_LOAD_REDUCE_BY_SIZE
#undef VERBENA_LOAD_REDUCE_BY_SIGN
#undef VERBENA_LOAD_REDUCE
#else
  (void)address;
#endif
  return result;
}

// Stores a word of 4 or 8 bytes, or a vector, at all GPUs.
template <typename T>
VERBENA_DEVICE void multimem_store(T* address, detail::Same<T> value) {
#if VERBENA_EMULATED
  detail::at_each_place(address, [&](T* place) { store_relaxed<Scope::kSystem>(place, value); });
#elif VERBENA_PTX
  if constexpr (sizeof(T) == 16) {
    const Vector16 bits = __builtin_bit_cast(Vector16, value);
    asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address),
                 "f"(detail::from_bits(bits.x)), "f"(detail::from_bits(bits.y)),
                 "f"(detail::from_bits(bits.z)), "f"(detail::from_bits(bits.w))
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("multimem.st.relaxed.sys.global.b64 [%0], %1;" ::"l"(address),
                 "l"(__builtin_bit_cast(uint64_t, value))
                 : "memory");
  } else {
    static_assert(sizeof(T) == 4, "verbena: a multicast store needs 4, 8 or 16 bytes");
    asm volatile("multimem.st.relaxed.sys.global.b32 [%0], %1;" ::"l"(address),
                 "r"(__builtin_bit_cast(uint32_t, value))
                 : "memory");
  }
#else
  (void)address, (void)value;
#endif
}

// Adds `value` to the word at each GPU.
template <typename T>
VERBENA_DEVICE void multimem_add(T* address, detail::Same<T> value) {
  static_assert(detail::kIsWord<T>, "verbena: an update needs a word of 4 or 8 bytes");
#if VERBENA_EMULATED
  detail::at_each_place(address,
                        [&](T* place) { reduce_add<Order::kRelaxed, Scope::kSystem>(place, value); });
#elif VERBENA_PTX
  if constexpr (sizeof(T) == 4)
    asm volatile("multimem.red.relaxed.sys.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
  else
    asm volatile("multimem.red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
#else
  (void)address, (void)value;
#endif
}

// The next functions take 16 bytes of float, Half or Bfloat16 elements, aligned to 16 bytes. The NVLink
// switch adds the elements in float, in an order that the switch chooses, and rounds once.
#define VERBENA_MULTICAST_NUMBER(T)                                                  \
  static_assert(__is_same(T, float) || __is_same(T, Half) || __is_same(T, Bfloat16), \
                "verbena: switches can add only float, Half and Bfloat16")

// Returns the element-wise sum over all GPUs.
template <typename T>
VERBENA_DEVICE Packed<T> multimem_load_sum(const T* address) {
  VERBENA_MULTICAST_NUMBER(T);
#if VERBENA_EMULATED
  PackedSum<T> sum{};
  detail::at_each_place(reinterpret_cast<const Vector16*>(address), [&](const Vector16* place) {
    sum.add(__builtin_bit_cast(Packed<T>, load_relaxed<Scope::kSystem>(place)));
  });
  return sum.round();
#else
  Vector16 sum{};
#if VERBENA_PTX
  if constexpr (__is_same(T, float)) {
    float x, y, z, w;
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x), "=f"(y), "=f"(z), "=f"(w)
                 : "l"(address)
                 : "memory");
    sum = {detail::to_bits(x), detail::to_bits(y), detail::to_bits(z), detail::to_bits(w)};
  } else if constexpr (__is_same(T, Half)) {
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.f16x2 {%0, %1, %2, %3}, [%4];"
                 : "=r"(sum.x), "=r"(sum.y), "=r"(sum.z), "=r"(sum.w)
                 : "l"(address)
                 : "memory");
  } else {
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2 {%0, %1, %2, %3}, [%4];"
                 : "=r"(sum.x), "=r"(sum.y), "=r"(sum.z), "=r"(sum.w)
                 : "l"(address)
                 : "memory");
  }
#else
  (void)address;
#endif
  return __builtin_bit_cast(Packed<T>, sum);
#endif
}

template <typename T>
VERBENA_DEVICE void multimem_store_packed(T* address, const Packed<T>& packed) {
  multimem_store(reinterpret_cast<Vector16*>(address), __builtin_bit_cast(Vector16, packed));
}

// Adds `packed` to the elements at each GPU. Each GPU rounds its results.
template <typename T>
VERBENA_DEVICE void multimem_add_packed(T* address, const Packed<T>& packed) {
  VERBENA_MULTICAST_NUMBER(T);
  const auto bits = __builtin_bit_cast(Vector16, packed);
#if VERBENA_EMULATED
  // Adds element by element, because the hardware is atomic only for single elements.
  detail::at_each_place(reinterpret_cast<Vector16*>(address), [&](Vector16* place) {
    auto* const words = reinterpret_cast<uint32_t*>(place);
    const uint32_t values[] = {bits.x, bits.y, bits.z, bits.w};
    for (uint32_t i = 0; i < 4; ++i) {
      uint32_t before = load_relaxed<Scope::kSystem>(words + i);
      for (;;) {
        PackedSum<T, 4> sum;
        sum.begin({{__builtin_bit_cast(typename Packed<T, 4>::Unit, before)}});
        sum.add({{__builtin_bit_cast(typename Packed<T, 4>::Unit, values[i])}});
        const auto after = __builtin_bit_cast(uint32_t, sum.round().units[0]);
        const uint32_t found = compare_exchange<Order::kRelaxed, Scope::kSystem>(words + i, before, after);
        if (found == before) break;
        before = found;
      }
    }
  });
#elif VERBENA_PTX
  if constexpr (__is_same(T, float)) {
    asm volatile("multimem.red.relaxed.sys.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address),
                 "f"(detail::from_bits(bits.x)), "f"(detail::from_bits(bits.y)),
                 "f"(detail::from_bits(bits.z)), "f"(detail::from_bits(bits.w))
                 : "memory");
  } else if constexpr (__is_same(T, Half)) {
    asm volatile("multimem.red.relaxed.sys.global.add.v4.f16x2 [%0], {%1, %2, %3, %4};" ::"l"(address),
                 "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w)
                 : "memory");
  } else {
    asm volatile("multimem.red.relaxed.sys.global.add.v4.bf16x2 [%0], {%1, %2, %3, %4};" ::"l"(address),
                 "r"(bits.x), "r"(bits.y), "r"(bits.z), "r"(bits.w)
                 : "memory");
  }
#else
  (void)address, (void)bits;
#endif
}
#undef VERBENA_MULTICAST_NUMBER

}  // namespace verbena::device

#endif
