// The one place where our errors leave the plugin: nothing thrown passes it, and every Outcome becomes a
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

// Logs the first that is missing.
[[gnu::cold, gnu::noinline]] inline abi::Result refuse_null(const char* entry, const char* argument) {
  base::log_warn("%s: invalid argument: %s is NULL", entry, argument);
  return abi::kInvalidArgument;
}

// Set in a forked child of a process that had a communicator open: its connections, threads and devices are
// the parent's, and what they share (queues that the device reads, sockets) must not be touched from here. A
// child that wants NCCL execs, or is forked before. No lock may be taken where it is set.
inline std::atomic<bool> is_inherited{false};

[[gnu::cold, gnu::noinline]] inline abi::Result refuse_inherited(const char* entry) {
  static std::atomic<bool> has_logged{false};
  if (!has_logged.exchange(true)) {
    base::log_warn(
        "%s: called in a forked child, but the connections belong to its parent; fork before NCCL is "
        "initialised, or call exec after fork",
        entry);
  }
  return abi::kInvalidUsage;
}

// Every data call passes here: on the path that succeeds this is the null checks and nothing else.
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

// By value, so that no array is built to be checked.
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

// `entry` is NCCL's name of the table entry. The core logged its own failures; here only ours are logged.
template <size_t kCount, typename Call>
[[gnu::always_inline]] inline abi::Result guard(const char* entry, const Required (&arguments)[kCount],
                                                const Call& call) noexcept {
  return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) __attribute__((always_inline)) {
    return guard_each(entry, call, arguments[kIndex]...);
  }
  (std::make_index_sequence<kCount>());
}

}  // namespace verbena::nccl
