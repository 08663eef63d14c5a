#include "nccl/process_context.h"

namespace verbena::nccl {

namespace {

// Created after the first init, so that it is destroyed before all static objects that the core created for
// its devices.
struct ReleaseAtUnload {
  ~ReleaseAtUnload() { ProcessContext::get().release(); }
};

}  // namespace

ProcessContext& ProcessContext::get() {
  static ProcessContext process_context;
  return process_context;
}

Outcome ProcessContext::init(abi::DebugLogger logger, abi::ProfilerCallback profiler, int abi_version) {
  const std::lock_guard lock(mutex_);
  if (!release_locked()) return {};  // still in use: the new communicators join
  void* fresh = nullptr;
  if (const Outcome outcome = nccl::init(&fresh, 0, abi::kUndefined, logger, profiler, abi_version);
      !outcome) {
    return outcome;
  }
  context_.store(fresh, std::memory_order_release);
  static const ReleaseAtUnload release_at_unload;
  return {};
}

void ProcessContext::release() {
  const std::lock_guard lock(mutex_);
  release_locked();
}

// Returns true if there is no context any more.
bool ProcessContext::release_locked() {
  void* const context = context_.load(std::memory_order_relaxed);
  if (context == nullptr) return true;
  if (!is_idle(context)) return false;
  context_.store(nullptr, std::memory_order_relaxed);
  return nccl::finalize(context).is_ok();
}

}  // namespace verbena::nccl
