// The one place where our errors leave the plugin: nothing thrown passes it, and every Outcome becomes a
// ncclResult_t.
#pragma once

#include <exception>
#include <initializer_list>
#include <new>

#include "base/log.h"
#include "base/status.h"
#include "nccl/adapt.h"

namespace verbena::nccl {

// An argument that must not be null, with NCCL's name for it.
struct Required {
  const char* name;
  const void* pointer;
};

// `entry` is NCCL's name of the table entry. The core logged its own failures; here only ours are logged. On
// the path that succeeds this is the null checks and nothing else.
template <typename Call>
abi::Result guard(const char* entry, std::initializer_list<Required> arguments, const Call& call) noexcept {
  for (const Required& argument : arguments) {
    if (argument.pointer == nullptr) [[unlikely]] {
      base::log_warn("%s: invalid argument: %s is NULL", entry, argument.name);
      return abi::kInvalidArgument;
    }
  }
  try {
    return convert_status(call().status());
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

}  // namespace verbena::nccl
