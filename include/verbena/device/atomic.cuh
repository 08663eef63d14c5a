// Atomic read-modify-write operations on 4 and 8 bytes, with the memory orders and scopes of PTX. update()
// and fetch_* return the previous value. reduce() and reduce_* return nothing and are cheaper. Addresses are
// generic or global, as in memory_order.cuh, and aligned to the size of the word. Any thread may call these
// functions. Combinations of types, orders and scopes that PTX does not have do not compile.
#ifndef VERBENA_DEVICE_ATOMIC_CUH
#define VERBENA_DEVICE_ATOMIC_CUH

#include "verbena/device/memory_order.cuh"

namespace verbena::device {

namespace detail {

template <typename T>
inline constexpr bool kIsWord = sizeof(T) == 4 || sizeof(T) == 8;
// True for integers, false for floating-point types. Does not compile for other types.
template <typename T>
inline constexpr bool kIsInteger = static_cast<T>(3) / static_cast<T>(2) * 2 != 3;
template <typename T>
inline constexpr bool kIsSigned = static_cast<T>(-1) < static_cast<T>(0);
template <Order order>
inline constexpr bool kIsUpdateOrder = order == Order::kRelaxed || order == Order::kAcquire ||
                                       order == Order::kRelease || order == Order::kAcquireRelease;

}  // namespace detail

#if VERBENA_PTX
// Update the word at the address, with `bits` as the operand. VERBENA_ATOM also writes the previous value to
// `before`.
#define VERBENA_ATOM(opcode, type32, type64)                                                                 \
  if constexpr (sizeof(T) == 4)                                                                              \
    asm volatile("atom" opcode type32 " %0, [%1], %2;" : "=r"(before) : "l"(address), "r"(bits) : "memory"); \
  else                                                                                                       \
    asm volatile("atom" opcode type64 " %0, [%1], %2;" : "=l"(before) : "l"(address), "l"(bits) : "memory")
#define VERBENA_RED(opcode, type32, type64)                                              \
  if constexpr (sizeof(T) == 4)                                                          \
    asm volatile("red" opcode type32 " [%0], %1;" ::"l"(address), "r"(bits) : "memory"); \
  else                                                                                   \
    asm volatile("red" opcode type64 " [%0], %1;" ::"l"(address), "l"(bits) : "memory")
#define VERBENA_BY_OPERATION(leaf, opcode)                                     \
  if constexpr (operation == Operation::kAdd) {                                \
    leaf(opcode ".add", ".u32", ".u64");                                       \
  } else if constexpr (operation == Operation::kMin && detail::kIsSigned<T>) { \
    leaf(opcode ".min", ".s32", ".s64");                                       \
  } else if constexpr (operation == Operation::kMin) {                         \
    leaf(opcode ".min", ".u32", ".u64");                                       \
  } else if constexpr (operation == Operation::kMax && detail::kIsSigned<T>) { \
    leaf(opcode ".max", ".s32", ".s64");                                       \
  } else if constexpr (operation == Operation::kMax) {                         \
    leaf(opcode ".max", ".u32", ".u64");                                       \
  } else if constexpr (operation == Operation::kAnd) {                         \
    leaf(opcode ".and", ".b32", ".b64");                                       \
  } else if constexpr (operation == Operation::kOr) {                          \
    leaf(opcode ".or", ".b32", ".b64");                                        \
  } else {                                                                     \
    leaf(opcode ".xor", ".b32", ".b64");                                       \
  }
#define VERBENA_UPDATE(opcode) VERBENA_BY_OPERATION(VERBENA_ATOM, opcode)
#define VERBENA_REDUCE(opcode) VERBENA_BY_OPERATION(VERBENA_RED, opcode)
#define VERBENA_EXCHANGE(opcode) VERBENA_ATOM(opcode ".exch", ".b32", ".b64")
#define VERBENA_COMPARE_EXCHANGE(opcode)                    \
  if constexpr (sizeof(T) == 4)                             \
    asm volatile("atom" opcode ".cas.b32 %0, [%1], %2, %3;" \
                 : "=r"(before)                             \
                 : "l"(address), "r"(compare), "r"(bits)    \
                 : "memory");                               \
  else                                                      \
    asm volatile("atom" opcode ".cas.b64 %0, [%1], %2, %3;" \
                 : "=l"(before)                             \
                 : "l"(address), "l"(compare), "l"(bits)    \
                 : "memory")
#define VERBENA_BY_UPDATE_ORDER(leaf)                     \
  if constexpr (order == Order::kRelaxed) {               \
    VERBENA_BY_SCOPE(VERBENA_BY_SPACE, leaf, ".relaxed"); \
  } else if constexpr (order == Order::kAcquire) {        \
    VERBENA_BY_SCOPE(VERBENA_BY_SPACE, leaf, ".acquire"); \
  } else if constexpr (order == Order::kRelease) {        \
    VERBENA_BY_SCOPE(VERBENA_BY_SPACE, leaf, ".release"); \
  } else {                                                \
    VERBENA_BY_SCOPE(VERBENA_BY_SPACE, leaf, ".acq_rel"); \
  }
#endif

// Replaces the value at the address with `desired` if it equals `expected`.
// @return the previous value, which equals `expected` if the value was replaced
template <Order order, Scope scope, Space space = Space::kGeneric, typename T>
VERBENA_DEVICE T compare_exchange(T* address, detail::Same<T> expected, detail::Same<T> desired) {
  static_assert(detail::kIsWord<T>, "verbena: an update needs a word of 4 or 8 bytes");
  static_assert(detail::kIsUpdateOrder<order>,
                "verbena: an update must be relaxed, acquire, release or acquire-release");
  static_assert(scope != Scope::kThreads, "verbena: an update needs a scope other than kThreads");
  const auto compare = __builtin_bit_cast(detail::Bits<T>, expected);
  const auto bits = __builtin_bit_cast(detail::Bits<T>, desired);
  detail::Bits<T> before{};
#if VERBENA_EMULATED
  before = static_cast<detail::Bits<T>>(
      emulation::update(address, Operation::kCompareExchange, bits, compare, sizeof(T), order, scope));
#elif VERBENA_PTX
  VERBENA_BY_UPDATE_ORDER(VERBENA_COMPARE_EXCHANGE);
#else
  (void)compare, (void)bits;
#endif
  return __builtin_bit_cast(T, before);
}

template <Order order, Scope scope, Space space = Space::kGeneric, typename T>
VERBENA_DEVICE T exchange(T* address, detail::Same<T> value) {
  static_assert(detail::kIsWord<T>, "verbena: an update needs a word of 4 or 8 bytes");
  static_assert(detail::kIsUpdateOrder<order>,
                "verbena: an update must be relaxed, acquire, release or acquire-release");
  static_assert(scope != Scope::kThreads, "verbena: an update needs a scope other than kThreads");
  const auto bits = __builtin_bit_cast(detail::Bits<T>, value);
  detail::Bits<T> before{};
#if VERBENA_EMULATED
  before = static_cast<detail::Bits<T>>(
      emulation::update(address, Operation::kExchange, bits, 0, sizeof(T), order, scope));
#elif VERBENA_PTX
  VERBENA_BY_UPDATE_ORDER(VERBENA_EXCHANGE);
#else
  (void)bits;
#endif
  return __builtin_bit_cast(T, before);
}

#if VERBENA_EMULATED
namespace detail {

// Computes the minimum or maximum of signed integers. The emulation needs this function, because the
// emulator's own functions compare unsigned integers.
template <Operation operation, Order order, Scope scope, typename T>
VERBENA_DEVICE T update_signed(T* address, T value) {
  T before = load<Order::kRelaxed, scope>(address);
  for (;;) {
    const bool is_taken = operation == Operation::kMin ? value < before : value > before;
    const T seen = compare_exchange<order, scope>(address, before, is_taken ? value : before);
    if (seen == before) return before;
    before = seen;
  }
}

}  // namespace detail
#endif

// Replaces the integer at `address` by operation(integer, value), and returns the previous integer. Minimum
// and maximum are signed if T is signed.
template <Operation operation, Order order, Scope scope, Space space = Space::kGeneric, typename T>
VERBENA_DEVICE T update(T* address, detail::Same<T> value) {
  static_assert(operation != Operation::kExchange && operation != Operation::kCompareExchange,
                "verbena: call exchange() or compare_exchange() instead");
  static_assert(detail::kIsWord<T> && detail::kIsInteger<T>,
                "verbena: an update needs an integer of 4 or 8 bytes");
  static_assert(detail::kIsUpdateOrder<order>,
                "verbena: an update must be relaxed, acquire, release or acquire-release");
  static_assert(scope != Scope::kThreads, "verbena: an update needs a scope other than kThreads");
  const auto bits = __builtin_bit_cast(detail::Bits<T>, value);
  detail::Bits<T> before{};
#if VERBENA_EMULATED
  if constexpr (detail::kIsSigned<T> && (operation == Operation::kMin || operation == Operation::kMax))
    return detail::update_signed<operation, order, scope>(address, value);
  before =
      static_cast<detail::Bits<T>>(emulation::update(address, operation, bits, 0, sizeof(T), order, scope));
#elif VERBENA_PTX
  VERBENA_BY_UPDATE_ORDER(VERBENA_UPDATE);
#else
  (void)bits;
#endif
  return __builtin_bit_cast(T, before);
}

template <Operation operation, Order order, Scope scope, Space space = Space::kGeneric, typename T>
VERBENA_DEVICE void reduce(T* address, detail::Same<T> value) {
  static_assert(operation != Operation::kExchange && operation != Operation::kCompareExchange,
                "verbena: call exchange() or compare_exchange() instead");
  static_assert(detail::kIsWord<T> && detail::kIsInteger<T>,
                "verbena: a reduction needs an integer of 4 or 8 bytes");
  static_assert(order == Order::kRelaxed || order == Order::kRelease,
                "verbena: a reduction must be relaxed or release");
  static_assert(scope != Scope::kThreads, "verbena: a reduction needs a scope other than kThreads");
#if VERBENA_EMULATED
  update<operation, order, scope>(address, value);
#elif VERBENA_PTX
  const auto bits = __builtin_bit_cast(detail::Bits<T>, value);
  if constexpr (order == Order::kRelaxed) {
    VERBENA_BY_SCOPE(VERBENA_BY_SPACE, VERBENA_REDUCE, ".relaxed");
  } else {
    VERBENA_BY_SCOPE(VERBENA_BY_SPACE, VERBENA_REDUCE, ".release");
  }
#else
  (void)address, (void)value;
#endif
}

// Define functions that are named after the operations. For example, fetch_add<order, scope>(address, value)
// returns the previous value, and reduce_add<order, scope>(address, value) returns nothing.
#define VERBENA_NAME_UPDATE(name, operation)                                     \
  template <Order order, Scope scope, Space space = Space::kGeneric, typename T> \
  VERBENA_DEVICE T fetch_##name(T* address, detail::Same<T> value) {             \
    return update<Operation::operation, order, scope, space>(address, value);    \
  }                                                                              \
  template <Order order, Scope scope, Space space = Space::kGeneric, typename T> \
  VERBENA_DEVICE void reduce_##name(T* address, detail::Same<T> value) {         \
    reduce<Operation::operation, order, scope, space>(address, value);           \
  }
VERBENA_NAME_UPDATE(add, kAdd)
VERBENA_NAME_UPDATE(min, kMin)
VERBENA_NAME_UPDATE(max, kMax)
VERBENA_NAME_UPDATE(and, kAnd)
VERBENA_NAME_UPDATE(or, kOr)
VERBENA_NAME_UPDATE(xor, kXor)
#undef VERBENA_NAME_UPDATE

}  // namespace verbena::device

#endif
