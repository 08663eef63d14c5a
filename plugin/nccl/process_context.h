// The context that the plugin uses for table versions up to 10. In these versions init returns no context,
// and there is no finalize. All communicators share the context of the last init. NCCL calls init again only
// when no communicator is left, so the previous context can be finalized then.
#pragma once

#include <atomic>
#include <mutex>

#include "nccl/net_core.h"

namespace verbena::nccl {

class ProcessContext {
 public:
  static ProcessContext& get();

  Outcome init(abi::DebugLogger logger, abi::ProfilerCallback profiler, int abi_version);
  // Finalizes the context, unless communicators still use it because the process exits without closing them.
  void release();
  // Returns null before init. Any thread may call it.
  void* context() const { return context_.load(std::memory_order_acquire); }

 private:
  bool release_locked();

  std::mutex mutex_;  // held by init and release
  std::atomic<void*> context_{nullptr};
};

}  // namespace verbena::nccl
