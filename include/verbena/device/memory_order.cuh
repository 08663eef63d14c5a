// Loads, stores and fences with the memory orders and scopes of PTX, for memory that other threads, GPUs, the
// host or a NIC may access at the same time. On the host, these functions call the functions of emulation.h.
//
// Addresses must be aligned to the size of the access. Addresses are generic by default. With Space::kGlobal,
// which is slightly faster, addresses must point to global memory: memory of this GPU or of a peer, or mapped
// host memory. An access of up to 8 bytes is single-copy atomic. A 16-byte access consists of two 8-byte
// accesses with the same order. Any thread may call these functions, unless a comment says that a whole warp
// or block must call them. Combinations of orders, scopes and cache hints that PTX does not have do not
// compile. Below sm_90, a cluster consists of one block, and cluster scope is compiled as the wider .gpu
// scope.
#ifndef VERBENA_DEVICE_MEMORY_ORDER_CUH
#define VERBENA_DEVICE_MEMORY_ORDER_CUH

#include "verbena/device/platform.cuh"
#if VERBENA_EMULATED
#include "verbena/device/emulation.h"
#endif

namespace verbena::device {

// Cache hints. Non-coherent loads (ld.global.nc) work on global memory only. Use these loads only for bytes
// that do not change while the kernel runs, because such a load may return an old value even after an
// acquire.
enum class Cache : uint8_t {
  kDefault,
  kNoAllocate,
  kEvictFirst,
  kEvictLast,
  kNonCoherent,
  kNonCoherentNoAllocate
};
enum class Space : uint8_t { kGeneric, kGlobal };

namespace detail {

template <size_t bytes>
VERBENA_HOST_DEVICE constexpr auto make_bits() {
  static_assert(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16,
                "verbena: an access needs 1, 2, 4, 8 or 16 bytes");
  if constexpr (bytes == 1) {
    return uint8_t{};
  } else if constexpr (bytes == 2) {
    return uint16_t{};
  } else if constexpr (bytes == 4) {
    return uint32_t{};
  } else if constexpr (bytes == 8) {
    return uint64_t{};
  } else {
    return Vector16{};
  }
}
template <typename T>
using Bits = decltype(make_bits<sizeof(T)>());

struct alignas(16) Halves {
  uint64_t low, high;
};

template <typename T>
struct Unchanged {
  using Type = T;
};
// A parameter of this type takes no part in template deduction, so fetch_add(&word64, 1) adds a 64-bit 1.
template <typename T>
using Same = typename Unchanged<T>::Type;

template <Order order, Scope scope>
inline constexpr bool kIsScopeRight =
    (order == Order::kWeak || order == Order::kVolatile) == (scope == Scope::kThreads);
template <Cache cache>
inline constexpr bool kIsNonCoherent = cache == Cache::kNonCoherent || cache == Cache::kNonCoherentNoAllocate;

}  // namespace detail

#if VERBENA_PTX
#if VERBENA_ARCH >= 900
#define VERBENA_CLUSTER_SCOPE ".cluster"
#else
#define VERBENA_CLUSTER_SCOPE ".gpu"
#endif
// Each of these macros appends a suffix to an opcode, and passes the opcode to the macro `next` or `leaf`.
// The suffix depends on a template parameter of the enclosing function. The macro `leaf` writes the
// instruction.
#define VERBENA_BY_SCOPE(next, leaf, opcode)       \
  if constexpr (scope == Scope::kBlock) {          \
    next(leaf, opcode ".cta");                     \
  } else if constexpr (scope == Scope::kCluster) { \
    next(leaf, opcode VERBENA_CLUSTER_SCOPE);      \
  } else if constexpr (scope == Scope::kGpu) {     \
    next(leaf, opcode ".gpu");                     \
  } else {                                         \
    next(leaf, opcode ".sys");                     \
  }
#define VERBENA_BY_SPACE(leaf, opcode)     \
  if constexpr (space == Space::kGlobal) { \
    leaf(opcode ".global");                \
  } else {                                 \
    leaf(opcode);                          \
  }
#define VERBENA_BY_CACHE(leaf, opcode)                                                   \
  if constexpr (cache == Cache::kNoAllocate || cache == Cache::kNonCoherentNoAllocate) { \
    leaf(opcode ".L1::no_allocate");                                                     \
  } else if constexpr (cache == Cache::kEvictFirst) {                                    \
    leaf(opcode ".L1::evict_first");                                                     \
  } else if constexpr (cache == Cache::kEvictLast) {                                     \
    leaf(opcode ".L1::evict_last");                                                      \
  } else {                                                                               \
    leaf(opcode);                                                                        \
  }
#define VERBENA_BY_SPACE_AND_CACHE(leaf, opcode) \
  if constexpr (space == Space::kGlobal) {       \
    VERBENA_BY_CACHE(leaf, opcode ".global");    \
  } else {                                       \
    VERBENA_BY_CACHE(leaf, opcode);              \
  }
// Load into `bits`, or store from `bits`. Registers have at least 32 bits. A weak 16-byte access is split
// into words. An ordered 16-byte access is split into 64-bit halves, which is the largest size that is atomic
// on every architecture.
#define VERBENA_LOAD(opcode)                                                        \
  if constexpr (sizeof(T) <= 4) {                                                   \
    uint32_t word;                                                                  \
    if constexpr (sizeof(T) == 1)                                                   \
      asm volatile(opcode ".b8 %0, [%1];" : "=r"(word) : "l"(address) : "memory");  \
    else if constexpr (sizeof(T) == 2)                                              \
      asm volatile(opcode ".b16 %0, [%1];" : "=r"(word) : "l"(address) : "memory"); \
    else                                                                            \
      asm volatile(opcode ".b32 %0, [%1];" : "=r"(word) : "l"(address) : "memory"); \
    bits = static_cast<detail::Bits<T>>(word);                                      \
  } else if constexpr (sizeof(T) == 8) {                                            \
    asm volatile(opcode ".b64 %0, [%1];" : "=l"(bits) : "l"(address) : "memory");   \
  } else if constexpr (order == Order::kWeak) {                                     \
    asm volatile(opcode ".v4.b32 {%0, %1, %2, %3}, [%4];"                           \
                 : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)           \
                 : "l"(address)                                                     \
                 : "memory");                                                       \
  } else {                                                                          \
    detail::Halves halves;                                                          \
    asm volatile(opcode ".v2.b64 {%0, %1}, [%2];"                                   \
                 : "=l"(halves.low), "=l"(halves.high)                              \
                 : "l"(address)                                                     \
                 : "memory");                                                       \
    bits = __builtin_bit_cast(Vector16, halves);                                    \
  }
#define VERBENA_STORE(opcode)                                                                       \
  if constexpr (sizeof(T) == 1)                                                                     \
    asm volatile(opcode ".b8 [%0], %1;" ::"l"(address), "r"(uint32_t{bits}) : "memory");            \
  else if constexpr (sizeof(T) == 2)                                                                \
    asm volatile(opcode ".b16 [%0], %1;" ::"l"(address), "r"(uint32_t{bits}) : "memory");           \
  else if constexpr (sizeof(T) == 4)                                                                \
    asm volatile(opcode ".b32 [%0], %1;" ::"l"(address), "r"(bits) : "memory");                     \
  else if constexpr (sizeof(T) == 8)                                                                \
    asm volatile(opcode ".b64 [%0], %1;" ::"l"(address), "l"(bits) : "memory");                     \
  else if constexpr (order == Order::kWeak)                                                         \
    asm volatile(opcode ".v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(bits.x), "r"(bits.y), \
                 "r"(bits.z), "r"(bits.w)                                                           \
                 : "memory");                                                                       \
  else                                                                                              \
    asm volatile(opcode ".v2.b64 [%0], {%1, %2};" ::"l"(address),                                   \
                 "l"(__builtin_bit_cast(detail::Halves, bits).low),                                 \
                 "l"(__builtin_bit_cast(detail::Halves, bits).high)                                 \
                 : "memory")
#define VERBENA_FENCE(unused, opcode) asm volatile(opcode ";" ::: "memory")
#endif

// Loads a value.
// @tparam order  kWeak or kVolatile (at Scope::kThreads), kRelaxed or kAcquire (at any other scope)
template <Order order, Scope scope, Cache cache = Cache::kDefault, Space space = Space::kGeneric, typename T>
VERBENA_DEVICE T load(const T* address) {
  static_assert(order <= Order::kAcquire, "verbena: a load must be weak, volatile, relaxed or acquire");
  static_assert(detail::kIsScopeRight<order, scope>,
                "verbena: weak and volatile loads need Scope::kThreads, all others a wider scope");
  static_assert(order != Order::kVolatile || cache == Cache::kDefault,
                "verbena: a volatile load cannot have a cache hint");
  static_assert(order == Order::kWeak || !detail::kIsNonCoherent<cache>,
                "verbena: a non-coherent load must be weak");
  detail::Bits<T> bits{};
#if VERBENA_EMULATED
  emulation::load(&bits, address, sizeof(T), order, scope);
#elif VERBENA_PTX
  if constexpr (detail::kIsNonCoherent<cache>) {
    VERBENA_BY_CACHE(VERBENA_LOAD, "ld.global.nc");
  } else if constexpr (order == Order::kWeak) {
    VERBENA_BY_SPACE_AND_CACHE(VERBENA_LOAD, "ld.weak");
  } else if constexpr (order == Order::kVolatile) {
    VERBENA_BY_SPACE(VERBENA_LOAD, "ld.volatile");
  } else if constexpr (order == Order::kRelaxed) {
    VERBENA_BY_SCOPE(VERBENA_BY_SPACE_AND_CACHE, VERBENA_LOAD, "ld.relaxed");
  } else {
    VERBENA_BY_SCOPE(VERBENA_BY_SPACE_AND_CACHE, VERBENA_LOAD, "ld.acquire");
  }
#endif
  return __builtin_bit_cast(T, bits);
}

// Stores a value.
// @tparam order  kWeak or kVolatile (at Scope::kThreads), kRelaxed or kRelease (at any other scope)
template <Order order, Scope scope, Cache cache = Cache::kDefault, Space space = Space::kGeneric, typename T>
VERBENA_DEVICE void store(T* address, detail::Same<T> value) {
  static_assert(order <= Order::kRelaxed || order == Order::kRelease,
                "verbena: a store must be weak, volatile, relaxed or release");
  static_assert(detail::kIsScopeRight<order, scope>,
                "verbena: weak and volatile stores need Scope::kThreads, all others a wider scope");
  static_assert(order != Order::kVolatile || cache == Cache::kDefault,
                "verbena: a volatile store cannot have a cache hint");
  static_assert(!detail::kIsNonCoherent<cache>, "verbena: only loads can be non-coherent");
  const auto bits = __builtin_bit_cast(detail::Bits<T>, value);
#if VERBENA_EMULATED
  emulation::store(address, &bits, sizeof(T), order, scope);
#elif VERBENA_PTX
  if constexpr (order == Order::kWeak) {
    VERBENA_BY_SPACE_AND_CACHE(VERBENA_STORE, "st.weak");
  } else if constexpr (order == Order::kVolatile) {
    VERBENA_BY_SPACE(VERBENA_STORE, "st.volatile");
  } else if constexpr (order == Order::kRelaxed) {
    VERBENA_BY_SCOPE(VERBENA_BY_SPACE_AND_CACHE, VERBENA_STORE, "st.relaxed");
  } else {
    VERBENA_BY_SCOPE(VERBENA_BY_SPACE_AND_CACHE, VERBENA_STORE, "st.release");
  }
#endif
}

// Executes a fence.
// @tparam order  kAcquireRelease or kSequential
// @tparam scope  any scope but kThreads
template <Order order, Scope scope>
VERBENA_DEVICE void fence() {
  static_assert(order == Order::kAcquireRelease || order == Order::kSequential,
                "verbena: a fence must be acquire-release or sequentially consistent");
  static_assert(scope != Scope::kThreads, "verbena: a fence needs a scope other than kThreads");
#if VERBENA_EMULATED
  emulation::fence(order, scope);
#elif VERBENA_PTX
  if constexpr (order == Order::kAcquireRelease) {
    VERBENA_BY_SCOPE(VERBENA_FENCE, , "fence.acq_rel");
  } else {
    VERBENA_BY_SCOPE(VERBENA_FENCE, , "fence.sc");
  }
#endif
}

template <Scope scope, typename T>
VERBENA_DEVICE T load_relaxed(const T* address) {
  return load<Order::kRelaxed, scope>(address);
}
template <Scope scope, typename T>
VERBENA_DEVICE T load_acquire(const T* address) {
  return load<Order::kAcquire, scope>(address);
}
template <Scope scope, typename T>
VERBENA_DEVICE void store_relaxed(T* address, detail::Same<T> value) {
  store<Order::kRelaxed, scope>(address, value);
}
template <Scope scope, typename T>
VERBENA_DEVICE void store_release(T* address, detail::Same<T> value) {
  store<Order::kRelease, scope>(address, value);
}

}  // namespace verbena::device

#endif
