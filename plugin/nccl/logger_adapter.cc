#include "nccl/logger_adapter.h"

#include <atomic>

#include "base/log.h"

namespace verbena::nccl {
namespace {

std::atomic<abi::DebugLogger> g_logger{nullptr};

struct NcclLevel {
  abi::LogLevel level;
  unsigned long subsystems;
};

// A warning is shown whatever NCCL_DEBUG_SUBSYS selects. Other lines belong to INIT (part of NCCL's default)
// and NET.
NcclLevel convert_level(base::LogLevel level) {
  switch (level) {
    case base::LogLevel::kWarn:
      return {abi::kLogWarn, abi::kSubsystemAll};
    case base::LogLevel::kInfo:
      return {abi::kLogInfo, abi::kSubsystemInit | abi::kSubsystemNet};
    case base::LogLevel::kTrace:
      break;
  }
  return {abi::kLogTrace, abi::kSubsystemNet};
}

void write_line(base::LogLevel level, const char* file, int line, const char* text) {
  const abi::DebugLogger logger = g_logger.load(std::memory_order_acquire);
  if (logger == nullptr) return;  // detached since the caller read the sink
  const NcclLevel nccl = convert_level(level);
  logger(nccl.level, nccl.subsystems, file, line, "%s", text);
}

}  // namespace

void attach_logger(abi::DebugLogger logger) noexcept {
  g_logger.store(logger, std::memory_order_release);
  base::set_log_sink(logger == nullptr ? nullptr : &write_line);
}

}  // namespace verbena::nccl
