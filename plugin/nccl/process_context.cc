#include "nccl/process_context.h"

namespace verbena::nccl {

ProcessContext& ProcessContext::get() {
  static ProcessContext process_context;
  return process_context;
}

Outcome ProcessContext::init(abi::DebugLogger logger, abi::ProfilerCallback profiler, int abi_version) {
  const std::lock_guard lock(mutex_);
  // The new one comes first: what both share (open devices, the bounce region) then stays up in between.
  void* fresh = nullptr;
  if (const Outcome outcome = nccl::init(&fresh, 0, abi::kUndefined, logger, profiler, abi_version);
      !outcome) {
    return outcome;
  }
  void* const previous = context_.exchange(fresh, std::memory_order_acq_rel);
  if (previous == nullptr) return {};
  return nccl::finalize(previous);
}

}  // namespace verbena::nccl
