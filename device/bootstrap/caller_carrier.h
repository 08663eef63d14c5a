// Collective calls over the all-gather that the caller brings.
#pragma once

#include "device/bootstrap/bootstrap.h"
#include "device/bootstrap/carrier.h"

namespace verbena::bootstrap {

class CallerCarrier final : public Carrier {
 public:
  CallerCarrier(AllGatherFunction function, void* context, uint32_t rank, uint32_t count_ranks)
      : function_(function), context_(context), rank_(rank), count_ranks_(count_ranks) {}

  base::Outcome all_gather(Operation what, std::span<const std::byte> mine,
                           std::span<std::byte> all) override;
  // Gathers everything everywhere: a function that does more is not asked for.
  base::Outcome exchange(std::span<const std::byte> mine, std::span<std::byte> theirs) override;
  base::Outcome look_around() override { return state_; }
  uint32_t rank() const override { return rank_; }
  uint32_t count_ranks() const override { return count_ranks_; }

 private:
  AllGatherFunction function_;
  void* context_;
  uint32_t rank_, count_ranks_;
  base::Outcome state_;
};

}  // namespace verbena::bootstrap
