#include "device/bootstrap/carrier.h"

#include <algorithm>
#include <vector>

#include "base/log.h"

namespace verbena::bootstrap {

base::Outcome CallerCarrier::all_gather(Operation, std::span<const std::byte> mine,
                                        std::span<std::byte> all) {
  if (state_.has_failed()) return state_;
  // A barrier has no data, but an all-gather of no bytes need not wait for the other ranks.
  const std::byte token{};
  std::vector<std::byte> tokens(mine.empty() ? count_ranks_ : 0);
  const int rc = mine.empty() ? function_(context_, &token, tokens.data(), 1)
                              : function_(context_, mine.data(), all.data(), mine.size());
  if (rc == 0) return {};
  state_ = base::fail(base::Status::kRemote,
                      "bootstrap: rank %u of %u: the caller's all-gather failed (result %d)", rank_,
                      count_ranks_, rc);
  return state_;
}

base::Outcome CallerCarrier::exchange(std::span<const std::byte> mine, std::span<std::byte> theirs) {
  std::vector<std::byte> all(mine.size() * count_ranks_);
  if (auto gathered = all_gather(Operation::kExchange, mine, all); !gathered) return gathered;
  const size_t part_bytes = mine.size() / count_ranks_;
  for (uint32_t from = 0; from < count_ranks_; ++from) {
    std::copy_n(all.data() + (size_t{from} * count_ranks_ + rank_) * part_bytes, part_bytes,
                theirs.data() + from * part_bytes);
  }
  return {};
}

}  // namespace verbena::bootstrap
