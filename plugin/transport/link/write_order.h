// Decides whether a write that must not overtake earlier writes has to wait for the completions of those
// writes (VERBENA_WORD_ORDER).
#pragma once

#include "base/parameters.h"
#include "verbs/device.h"

namespace verbena::transport {

inline bool waits_for_writes(const verbs::Device& device) {
  const base::WordOrder order = base::parameters().word_order;
  if (order == base::WordOrder::kAuto) return !device.keeps_write_order();
  return order == base::WordOrder::kCompleted;
}

}  // namespace verbena::transport
