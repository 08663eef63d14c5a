// Counters, traces and injected faults of symm_* calls, for profilers and tests (see SymmProbes in
// symm_abi.h). This code is compiled in only if VERBENA_DEVICE_PROBES or VERBENA_DEVICE_FAULTS is defined.
// Internal to symm_*.
#ifndef VERBENA_DEVICE_SYMM_PROBE_CUH
#define VERBENA_DEVICE_SYMM_PROBE_CUH

#include "verbena/device/trace.cuh"
#include "verbena/symm_abi.h"

namespace verbena::device {

namespace detail {

VERBENA_DEVICE void count_probe(uint64_t* counter, uint64_t amount) {
  reduce_add<Order::kRelaxed, Scope::kSystem>(counter, amount);
}

// Counts and traces a call of a group. All threads of the group call this function; one of them records the
// call.
template <typename Group>
VERBENA_DEVICE void record_call(const SymmContext& context, const Group& group, TraceEvent event,
                                uint32_t number, int32_t peer, uint64_t second, uint64_t SymmProbes::*calls,
                                uint64_t SymmProbes::*bytes = nullptr) {
  if constexpr (kHasProbes) {
    if (context.probes == nullptr || group.rank() != 0) return;
    count_probe(&(context.probes->*calls), 1);
    if (bytes != nullptr) count_probe(&(context.probes->*bytes), second);
    trace(context.probes->trace, event, number, static_cast<uint32_t>(peer), second);
  }
}
template <typename Group>
VERBENA_DEVICE void record_put(const SymmContext& context, const Group& group, int32_t peer,
                               uint64_t length_bytes) {
  record_call(context, group, TraceEvent::kSymmPut, 0, peer, length_bytes, &SymmProbes::puts,
              &SymmProbes::put_bytes);
}
template <typename Group>
VERBENA_DEVICE void record_get(const SymmContext& context, const Group& group, int32_t peer,
                               uint64_t length_bytes) {
  record_call(context, group, TraceEvent::kSymmGet, 0, peer, length_bytes, &SymmProbes::gets,
              &SymmProbes::get_bytes);
}
template <typename Group>
VERBENA_DEVICE void record_signal(const SymmContext& context, const Group& group, uint32_t signal,
                                  int32_t peer, uint64_t value) {
  record_call(context, group, TraceEvent::kSymmSignal, signal, peer, value, &SymmProbes::signals);
}
template <typename Group>
VERBENA_DEVICE void record_update(const SymmContext& context, const Group& group, int32_t peer,
                                  uint64_t value) {
  record_call(context, group, TraceEvent::kSymmUpdate, 0, peer, value, &SymmProbes::updates);
}

// Returns the start time of a wait, for record_wait(), or 0 if waits are not recorded.
VERBENA_DEVICE uint64_t begin_wait(const SymmContext& context) {
  if constexpr (kHasProbes || kHasFaults) {
    return context.probes == nullptr ? 0 : clock_ns() | 1;
  } else {
    return 0;
  }
}
template <typename Group>
VERBENA_DEVICE void record_wait(const SymmContext& context, const Group& group, uint32_t number,
                                uint32_t peer, uint64_t begun_ns, bool is_late) {
  if constexpr (kHasProbes) {
    if (context.probes == nullptr) return;
    SymmProbes& probes = *context.probes;
    if (is_late) {
      count_probe(&probes.late_waits, 1);
      trace(probes.trace, TraceEvent::kSymmLate, number, peer);
    }
    if (begun_ns == 0 || group.rank() != 0) return;
    const uint64_t waited_ns = clock_ns() - begun_ns;
    count_probe(&probes.waits, 1);
    count_probe(&probes.wait_ns, waited_ns);
    trace(probes.trace, TraceEvent::kSymmWaited, number, peer, waited_ns);
  }
}

// Returns whether the fault must be injected here, and clears the fault's bit. One thread makes the call.
VERBENA_DEVICE bool take_fault(const SymmContext& context, SymmFault fault) {
  if constexpr (kHasFaults) {
    if (context.probes == nullptr) return false;
    const auto bit = static_cast<uint64_t>(fault);
    uint64_t* const faults = &context.probes->faults;
    if ((load_relaxed<Scope::kSystem>(faults) & bit) == 0) return false;
    return (update<Operation::kAnd, Order::kRelaxed, Scope::kSystem>(faults, ~bit) & bit) != 0;
  } else {
    return false;
  }
}
VERBENA_DEVICE void delay_put(const SymmContext& context) {
  if constexpr (kHasFaults) {
    if (context.probes == nullptr) return;
    const uint64_t faults = load_relaxed<Scope::kSystem>(&context.probes->faults);
    if ((faults & static_cast<uint64_t>(SymmFault::kDelayPuts)) != 0) pause(1000);
  }
}

}  // namespace detail

}  // namespace verbena::device

#endif
