// Carries bytes between the ranks for a Bootstrap (bootstrap.h). Every call is collective: all ranks make the
// same calls, with the same lengths, in the same order. After an error every further call returns the same
// error.
#pragma once

#include <cstddef>
#include <span>

#include "base/status.h"
#include "device/bootstrap/messages.h"

namespace verbena::bootstrap {

class Carrier {
 public:
  virtual ~Carrier() = default;

  // `all` has count_ranks() times the length of `mine`, and receives rank 0's first.
  virtual base::Outcome all_gather(Operation what, std::span<const std::byte> mine,
                                   std::span<std::byte> all) = 0;
  // Part i of `mine` goes to rank i; part i of `theirs` comes from rank i. Both have count_ranks() parts.
  virtual base::Outcome exchange(std::span<const std::byte> mine, std::span<std::byte> theirs) = 0;
  // Between two calls: whether all other ranks are there, as far as this rank can see without waiting.
  virtual base::Outcome look_around() = 0;
  // The deadline of each later call, if the carrier has deadlines of its own.
  virtual void set_timeout_ms(int64_t) {}

  virtual uint32_t rank() const = 0;
  virtual uint32_t count_ranks() const = 0;
};

// Copies the `bytes_each` at `mine` to every rank's `all`, rank 0's first; 0: done.
using AllGatherFunction = int (*)(void* context, const void* mine, void* all, size_t bytes_each);

// Collective calls over the caller's all-gather.
class CallerCarrier final : public Carrier {
 public:
  CallerCarrier(AllGatherFunction function, void* context, uint32_t rank, uint32_t count_ranks)
      : function_(function), context_(context), rank_(rank), count_ranks_(count_ranks) {}

  base::Outcome all_gather(Operation what, std::span<const std::byte> mine,
                           std::span<std::byte> all) override;
  // Gathers all parts on every rank, because the caller's function can do nothing else.
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
