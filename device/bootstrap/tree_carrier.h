// Collective calls over the tree: every rank's contribution goes up to rank 0, relayed as it comes, and the
// result comes down. A rank that fails, or sees a neighbour gone, tells all others, so nobody waits for what
// cannot come; when the first rank's time is over, rank 0 says who is missing.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "device/bootstrap/carrier.h"
#include "device/bootstrap/collective_call.h"
#include "device/bootstrap/failure_note.h"
#include "device/bootstrap/tree_links.h"

namespace verbena::bootstrap {

class TreeCarrier final : public Carrier {
 public:
  // With links that may still have to come: the first call waits for them.
  TreeCarrier(const TreeLinks::Place& place, TreeLinks links, int64_t timeout_ms);
  // Tells the neighbours that we leave in order.
  ~TreeCarrier() override;

  base::Outcome all_gather(Operation what, std::span<const std::byte> mine,
                           std::span<std::byte> all) override;
  base::Outcome exchange(std::span<const std::byte> mine, std::span<std::byte> theirs) override;
  base::Outcome look_around() override;
  void set_timeout_ms(int64_t timeout_ms) override { timeout_ms_ = timeout_ms; }
  uint32_t rank() const override { return rank_; }
  uint32_t count_ranks() const override { return shape_.count_ranks; }

 private:
  using Call = CollectiveCall;

  base::Outcome run(Operation operation, base::Bytes mine, std::span<uint8_t> result);
  void begin(Call& call);
  base::Outcome progress(Call& call);
  base::Outcome handle(Call& call, const TreeLinks::Arrival& arrival);
  base::Outcome handle_contribution(Call& call, const TreeLinks::Arrival& arrival);
  base::Outcome handle_result(Call& call, const TreeLinks::Arrival& arrival);
  base::Outcome handle_failure(const TreeLinks::Arrival& arrival);
  base::Outcome check_for_lost(const Call& call);
  base::Outcome handle_time(Call& call);
  void ask_who_is_missing(Call& call);
  void send_results(Call& call);
  base::Error give_verdict(const Call& call);
  bool awaits(const Call& call, size_t neighbour) const;
  bool is_done(const Call& call) const { return call.results_due() == 0 && links_.is_flushed(); }
  bool is_root() const { return rank_ == 0; }
  std::string describe_call(Operation operation, uint32_t sequence) const;
  std::string describe_lost(size_t neighbour) const;
  // Tells everybody but `from`, logs, and ends this carrier.
  base::Error fail_all(const FailureNote& note, std::optional<size_t> from);

  TreeShape shape_;
  uint32_t rank_;
  int64_t timeout_ms_;
  TreeLinks links_;
  uint32_t sequence_ = 0;
  std::vector<bool> has_left_;             // by neighbour: said goodbye
  std::vector<TreeLinks::Arrival> early_;  // for the next call
  base::Outcome state_;
};

}  // namespace verbena::bootstrap
