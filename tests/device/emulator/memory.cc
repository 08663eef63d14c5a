// Accesses to memory, of verbena/device/emulation.h. This file is compiled with the sanitizers: a weak access
// is a plain one to them, a strong one a relaxed atomic; access.h adds the effects of order and scope.
#include <cstring>

#include "access.h"
#include "sanitizer.h"
#include "verbena/device/emulation.h"

#if VERBENA_EMULATOR_TSAN
// Each block whose call has failed spoils all of the output, and may meet a block that still writes its part:
// the call has failed whichever of them comes last.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions();
const char* __tsan_default_suppressions() {
  return "race:verbena::ops::spoil\n";
}
#endif

namespace verbena::device::emulation {

namespace {

template <typename T>
struct Alias {
  typedef T Type __attribute__((may_alias));
};
template <typename T>
using Aliased = typename Alias<T>::Type;

template <typename T>
void load_as(void* value, const void* address, bool is_weak, size_t count = 1) {
  const auto* from = static_cast<const Aliased<T>*>(address);
  auto* to = static_cast<Aliased<T>*>(value);
  for (size_t i = 0; i < count; ++i) to[i] = is_weak ? from[i] : __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

template <typename T>
void store_as(void* address, const void* value, bool is_weak, size_t count = 1) {
  const auto* from = static_cast<const Aliased<T>*>(value);
  auto* to = static_cast<Aliased<T>*>(address);
  for (size_t i = 0; i < count; ++i) {
    if (is_weak) {
      to[i] = from[i];
    } else {
      __atomic_store_n(&to[i], from[i], __ATOMIC_RELAXED);
    }
  }
}

void load_bytes(void* value, const void* address, size_t length_bytes, bool is_weak) {
  switch (length_bytes) {
    case 1:
      return load_as<uint8_t>(value, address, is_weak);
    case 2:
      return load_as<uint16_t>(value, address, is_weak);
    case 4:
      return load_as<uint32_t>(value, address, is_weak);
    default:
      return load_as<uint64_t>(value, address, is_weak, length_bytes / 8);
  }
}

void store_bytes(void* address, const void* value, size_t length_bytes, bool is_weak) {
  switch (length_bytes) {
    case 1:
      return store_as<uint8_t>(address, value, is_weak);
    case 2:
      return store_as<uint16_t>(address, value, is_weak);
    case 4:
      return store_as<uint32_t>(address, value, is_weak);
    default:
      return store_as<uint64_t>(address, value, is_weak, length_bytes / 8);
  }
}

// Stores `after` if the word is still `before`; otherwise returns false, and `before` is the word.
bool replace(void* address, uint64_t& before, uint64_t after, size_t length_bytes) {
  const auto exchange = [&]<typename T>(T expected) {
    const bool is_done =
        __atomic_compare_exchange_n(static_cast<Aliased<T>*>(address), &expected, static_cast<T>(after),
                                    false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    before = expected;
    return is_done;
  };
  return length_bytes == 4 ? exchange(static_cast<uint32_t>(before)) : exchange(before);
}

// Of up to 8 bytes.
uint64_t read_bits(const void* value, size_t length_bytes) {
  uint64_t bits = 0;
  memcpy(&bits, value, length_bytes);
  return bits;
}

// Whether it was one of 16 bytes, and came in two parts.
template <typename Access>
bool tear_wide(size_t length_bytes, Order order, const Access& access) {
  if (length_bytes <= 8 || order == Order::kWeak) return false;
  const bool is_in_order = emulator::tears_in_order();
  access(is_in_order ? 0 : 8);
  access(is_in_order ? 8 : 0);
  return true;
}

uint64_t apply(Operation operation, uint64_t before, uint64_t operand, uint64_t compare) {
  switch (operation) {
    case Operation::kAdd:
      return before + operand;
    case Operation::kMin:
      return before < operand ? before : operand;
    case Operation::kMax:
      return before > operand ? before : operand;
    case Operation::kAnd:
      return before & operand;
    case Operation::kOr:
      return before | operand;
    case Operation::kXor:
      return before ^ operand;
    case Operation::kExchange:
      return operand;
    case Operation::kCompareExchange:
      return before == compare ? operand : before;
  }
  return before;
}

// PTX's volatile is relaxed with the widest scope.
void resolve_volatile(Order& order, Scope& scope) {
  if (order != Order::kVolatile) return;
  order = Order::kRelaxed;
  scope = Scope::kSystem;
}

}  // namespace

void load(void* value, const void* address, size_t length_bytes, Order order, Scope scope) {
  const bool is_torn = tear_wide(length_bytes, order, [&](size_t offset) {
    load(static_cast<char*>(value) + offset, static_cast<const char*>(address) + offset, 8, order, scope);
  });
  if (is_torn) return;
  emulator::begin_access("load", address, length_bytes);
  resolve_volatile(order, scope);
  load_bytes(value, address, length_bytes, order == Order::kWeak);
  if (order == Order::kWeak) return;
  if (order != Order::kRelaxed && order != Order::kAcquire) emulator::refuse_order("load");
  if (emulator::observe_load(address, read_bits(value, length_bytes), order, scope)) return;
  load_bytes(value, address, length_bytes, true);
}

void store(void* address, const void* value, size_t length_bytes, Order order, Scope scope) {
  const bool is_torn = tear_wide(length_bytes, order, [&](size_t offset) {
    store(static_cast<char*>(address) + offset, static_cast<const char*>(value) + offset, 8, order, scope);
  });
  if (is_torn) return;
  emulator::begin_access("store", address, length_bytes);
  resolve_volatile(order, scope);
  emulator::note_store();
  if (order == Order::kWeak) {
    for (size_t offset = 0; offset < length_bytes; offset += 8)
      emulator::forget(static_cast<const char*>(address) + offset);
    store_bytes(address, value, length_bytes, true);
    return;
  }
  if (order != Order::kRelaxed && order != Order::kRelease) emulator::refuse_order("store");
  const bool is_strong =
      emulator::publish_store(address, read_bits(value, length_bytes), order, scope, false);
  store_bytes(address, value, length_bytes, !is_strong);
}

uint64_t update(void* address, Operation operation, uint64_t operand, uint64_t compare, size_t length_bytes,
                Order order, Scope scope) {
  emulator::begin_access("update", address, length_bytes);
  if (length_bytes != 4 && length_bytes != 8) emulator::refuse_order("update");
  if (order == Order::kWeak || order == Order::kVolatile || order == Order::kSequential) {
    emulator::refuse_order("update");
  }
  if (length_bytes == 4) {
    operand = static_cast<uint32_t>(operand);
    compare = static_cast<uint32_t>(compare);
  }
  uint64_t before = 0;
  load_bytes(&before, address, length_bytes, false);
  const bool reads_strongly = emulator::observe_load(address, before, order, scope);
  if (!reads_strongly) load_bytes(&before, address, length_bytes, true);
  // One thread of this process runs at a time, but another process may change the word meanwhile.
  while (true) {
    uint64_t after = apply(operation, before, operand, compare);
    if (length_bytes == 4) after = static_cast<uint32_t>(after);
    if (operation == Operation::kCompareExchange && before != compare) return before;
    if (after != before) emulator::note_store();
    const bool writes_strongly = emulator::publish_store(address, after, order, scope, true);
    if (writes_strongly && !replace(address, before, after, length_bytes)) continue;
    if (!writes_strongly) store_bytes(address, &after, length_bytes, true);
    return before;
  }
}

}  // namespace verbena::device::emulation
