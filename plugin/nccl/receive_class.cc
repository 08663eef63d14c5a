#include "nccl/receive_class.h"

#include <algorithm>

#include "base/parameters.h"

namespace verbena::nccl {

uint32_t RegistrationOrder::add(size_t length_bytes) {
  const uint32_t ordinal = count_.load(std::memory_order_relaxed);
  if (ordinal < lengths_bytes_.size()) lengths_bytes_[ordinal].store(length_bytes, std::memory_order_relaxed);
  count_.store(ordinal + 1,
               std::memory_order_release);  // after the length: the data thread reads count first
  return ordinal;
}

void RegistrationOrder::decide(Family family) {
  simple_ = choose(family);
  is_decided_ = true;
}

uint32_t RegistrationOrder::choose(Family family) const {
  const uint32_t count = count_.load(std::memory_order_acquire);
  const uint32_t last = count == 0 ? 0 : std::min(count, 3U) - 1;
  const bool p2p_has_ll = base::parameters().nccl_p2p_ll_buffers;
  switch (family) {
    case Family::kCollective:
      return last;
    case Family::kPointToPoint:
      return p2p_has_ll ? std::min(last, 1U) : 0;
    case Family::kUnknown:
      break;
  }
  const auto length_bytes = [this](size_t i) { return lengths_bytes_[i].load(std::memory_order_relaxed); };
  const auto& parameters = base::parameters();
  if (count < 2 || length_bytes(0) != static_cast<size_t>(parameters.nccl_ll_buffer_bytes)) return 0;
  const bool is_ll128 = length_bytes(1) == static_cast<size_t>(parameters.nccl_ll128_buffer_bytes);
  return p2p_has_ll && !is_ll128 ? 1 : last;
}

}  // namespace verbena::nccl
