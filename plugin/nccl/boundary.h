// The only place where errors leave the plugin. It catches all exceptions, and converts every Outcome to an
// ncclResult_t.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "nccl/adapt.h"

namespace verbena::nccl {

// An argument that must not be null, with NCCL's name for it.
struct Required {
  const char* name;
  const void* pointer;
};
struct NoArguments {};

// Logs the first argument that is NULL.
[[gnu::cold, gnu::noinline]] inline abi::Result refuse_null(const char* entry, const char* argument) {
  base::log_warn("%s: invalid argument: %s is NULL", entry, argument);
  return abi::kInvalidArgument;
}

// Set in a forked child of a process that had an open communicator. Connections, threads and devices belong
// to the parent, and the child must not touch what both share (queues that the device reads, sockets). A
// process that needs NCCL in a child must fork earlier, or call exec. The code that sets it must not take a
// lock.
inline std::atomic<bool> is_inherited{false};

[[gnu::cold, gnu::noinline]] inline abi::Result refuse_inherited(const char* entry) {
  static std::atomic<bool> has_logged{false};
  if (!has_logged.exchange(true)) {
    base::log_warn(
        "%s: this process is a forked child, but the connections belong to its parent process. Fork before "
        "NCCL is initialised, or call exec after fork",
        entry);
  }
  return abi::kInvalidUsage;
}

// Every data call passes here. On success, this costs only the null checks.
template <typename Call>
[[gnu::always_inline]] inline abi::Result guard(const char* entry, NoArguments, const Call& call) noexcept {
  if (is_inherited.load(std::memory_order_relaxed)) [[unlikely]]
    return refuse_inherited(entry);
  try {
    const base::Outcome outcome = call();
    if (outcome) [[likely]]
      return abi::kSuccess;
    return convert_status(outcome.status());
  } catch (const std::bad_alloc&) {
    base::log_warn("%s: out of host memory", entry);
    return abi::kSystemError;
  } catch (const std::exception& exception) {
    base::log_warn("%s: unexpected exception: %s", entry, exception.what());
  } catch (...) {
    base::log_warn("%s: unexpected exception of an unknown type", entry);
  }
  return abi::kInternalError;
}

// Calls `call` only if no argument is null. Takes the arguments by value, so that the compiler need not store
// them in an array.
template <typename Call, typename... Arguments>
[[gnu::always_inline]] inline abi::Result guard_each(const char* entry, const Call& call,
                                                     const Arguments... arguments) noexcept {
  if ((... || (arguments.pointer == nullptr))) [[unlikely]] {
    const char* missing = nullptr;
    ((missing = missing == nullptr && arguments.pointer == nullptr ? arguments.name : missing), ...);
    return refuse_null(entry, missing);
  }
  return guard(entry, NoArguments(), call);
}

// `entry` is NCCL's name of the table entry. The core has logged its own failures; this function logs only
// invalid arguments and exceptions.
template <size_t kCount, typename Call>
[[gnu::always_inline]] inline abi::Result guard(const char* entry, const Required (&arguments)[kCount],
                                                const Call& call) noexcept {
  return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) __attribute__((always_inline)) {
    return guard_each(entry, call, arguments[kIndex]...);
  }
  (std::make_index_sequence<kCount>());
}

}  // namespace verbena::nccl
